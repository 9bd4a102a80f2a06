"""Several prompts of one HTTP request, answered side by side."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from fastgen_runtime.front.answer import Delta
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import Generation
from fastgen_runtime.front.stream import Stream

_MAX_UNTAKEN: Final = 64
"""Deltas that wait for a slow client; behind them its streams collect tokens by themselves."""


@dataclass(frozen=True, slots=True)
class BatchDelta:
    """prompt: its number. num_prompt_tokens: of that prompt."""

    prompt: int
    num_prompt_tokens: int
    delta: Delta


async def deltas_of(number: int, stream: Stream) -> AsyncIterator[BatchDelta]:
    """The deltas of the prompt with this number."""
    async for delta in stream.deltas():
        yield BatchDelta(number, stream.num_prompt_tokens, delta)


@asynccontextmanager
async def open_batch(
    front: Front, generations: Sequence[Generation]
) -> AsyncIterator[AsyncIterator[BatchDelta]]:
    """Deltas of all of them, as they come; raises RequestError where the first one breaks off.

    They are one request. At most half of the replica's places are taken at once, so that it leaves
    room for others. Leaving the context early frees the blocks of all.
    """
    async with front.accept(generations) as submission:
        places = front.load().max_running // 2
        several = asyncio.Semaphore(max(1, places // submission.generation.num_choices))
        untaken: asyncio.Queue[BatchDelta | BaseException | None] = asyncio.Queue(_MAX_UNTAKEN)

        async def answer(number: int) -> None:
            try:
                async with several, front.open(submission, number) as stream:
                    async for delta in deltas_of(number, stream):
                        await untaken.put(delta)
            except Exception as error:
                await untaken.put(error)
            else:
                await untaken.put(None)

        tasks = [asyncio.create_task(answer(number)) for number in range(len(generations))]
        try:
            yield _take(untaken, len(tasks))
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


async def _take(
    untaken: "asyncio.Queue[BatchDelta | BaseException | None]", num_open: int
) -> AsyncIterator[BatchDelta]:
    while num_open:
        match await untaken.get():
            case BatchDelta() as delta:
                yield delta
            case None:
                num_open -= 1
            case BaseException() as error:
                raise error
