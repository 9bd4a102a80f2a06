"""A request's choices, from the engine's tokens to what its client reads."""

import asyncio
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_runtime.engine.request import FinishReason, NewToken, Started
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Answer, Delta, PromptEcho, Usage
from fastgen_runtime.front.generation import ErrorKind, RequestError
from fastgen_runtime.front.goodness import Timings, TokenTimes
from fastgen_runtime.front.stream import Choice, Stream
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.sources.fetch import SMOLLM2, fetch
from fastgen_runtime.text.detokenizer import Vocabulary

PROMPT_LOGPROBS = (TokenLogprobs(2, -1.0, 4),)
BROKEN = RequestError(ErrorKind.UNAVAILABLE, "the engine is gone")


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(open_checkpoint(fetch(SMOLLM2)).tokenizer)


def begun(num_choices: int, echo: PromptEcho | None = None, logprobs: bool = False) -> Stream:
    stream = Stream("9", Timings(0.0), num_choices)
    stream.timings.prompt_tokens = 2
    stream.timings.choices = [TokenTimes() for _ in range(num_choices)]
    choices = [
        Choice(stream, f"9.{index}", index, times, Answer(vocabulary(), 2, index=index))
        for index, times in enumerate(stream.timings.choices)
    ]
    stream.begin(choices, echo, logprobs)
    return stream


def push(
    stream: Stream, index: int, token_id: int, now: float = 0.0, *, is_last: bool = False,
    started: Started | None = None,
) -> bool:  # fmt: skip
    choice = stream.choices[index]
    finish = FinishReason.LENGTH if is_last else None
    token = NewToken(choice.engine_id, token_id, finish, started=started)
    return choice.push(token, now)


async def read(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream.deltas()]


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(1, 6),
)
def test_each_choice_arrives_whole_and_the_usage_last(
    lengths: list[int], random: "st.DrawFn", per_step: int
) -> None:
    """The tokens of all choices in any order, several per step, with reads between steps."""
    order = [index for index, length in enumerate(lengths) for _ in range(length)]
    random.shuffle(order)  # type: ignore[attr-defined]

    async def run() -> list[Delta]:
        stream = begun(len(lengths))
        reading = asyncio.create_task(read(stream))
        counts = [0] * len(lengths)
        for number, index in enumerate(order):
            assert not stream.is_finished
            counts[index] += 1
            is_last = counts[index] == lengths[index]
            started = Started(0.1, 1) if counts[index] == 1 else None
            assert push(stream, index, 100 + counts[index], is_last=is_last, started=started) is (
                is_last
            )
            if number % per_step == 0:
                await asyncio.sleep(0)
        assert stream.is_finished
        return await reading

    deltas = asyncio.run(run())
    for index, length in enumerate(lengths):
        own = [delta for delta in deltas if delta.index == index]
        told = [token for delta in own for token in delta.token_ids]
        assert told == [101 + number for number in range(length)]
        assert [delta.finish for delta in own] == [None] * (len(own) - 1) + [FinishReason.LENGTH]
    usages = [delta.usage for delta in deltas]
    assert usages == [None] * (len(deltas) - 1) + [Usage(2, sum(lengths), 1)]


async def test_a_step_of_many_choices_wakes_the_client_once() -> None:
    stream = begun(3)
    deltas = stream.deltas()
    first = asyncio.ensure_future(anext(deltas))
    await asyncio.sleep(0)
    for index in (2, 0, 1):
        push(stream, index, 100)
    told = [await first, await anext(deltas), await anext(deltas)]
    assert [delta.index for delta in told] == [0, 1, 2]
    waiting = asyncio.ensure_future(anext(deltas))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_client_that_reads_slowly_gets_several_tokens_at_once() -> None:
    stream = begun(2)
    push(stream, 0, 101)
    push(stream, 1, 101)
    deltas = stream.deltas()
    assert (await anext(deltas)).token_ids == (101,)
    push(stream, 0, 102, is_last=True)
    push(stream, 1, 102, is_last=True)
    assert [(delta.index, delta.token_ids) async for delta in deltas] == [
        (1, (101, 102)), (0, (102,)),
    ]  # fmt: skip


async def test_every_choice_begins_with_the_prompt() -> None:
    echo = PromptEcho("Say", (1, 2))
    stream = begun(2, echo)
    for index in (0, 1):
        push(stream, index, 101)
        push(stream, index, 102, is_last=index == 1)
    deltas = stream.deltas()
    assert [(await anext(deltas)).prompt for _ in range(2)] == [echo, echo]
    push(stream, 0, 103, is_last=True)
    assert [delta.prompt async for delta in deltas] == [None]


async def test_choices_wait_for_the_prompts_log_probabilities() -> None:
    stream = begun(2, PromptEcho("", (1, 2)), logprobs=True)
    push(stream, 1, 101, started=Started(0.1, 1))
    deltas = stream.deltas()
    waiting = asyncio.ensure_future(anext(deltas))
    await asyncio.sleep(0)
    assert not waiting.done()
    push(stream, 0, 101, started=Started(0.1, 0, PROMPT_LOGPROBS))
    first, second = await waiting, await anext(deltas)
    assert (first.index, second.index) == (0, 1)
    assert first.prompt == second.prompt == PromptEcho("", (1, 2), PROMPT_LOGPROBS)
    assert stream.usage.cached_tokens == 0


async def test_an_error_ends_a_stream_with_choices_under_way() -> None:
    stream = begun(2)
    push(stream, 0, 101, is_last=True)
    stream.fail(BROKEN)
    with pytest.raises(RequestError, match="the engine is gone"):
        await read(stream)
    assert not stream.is_finished


async def test_an_answer_that_is_complete_stays_so() -> None:
    stream = begun(2)
    for index in (0, 1):
        push(stream, index, 101, is_last=True)
    stream.fail(BROKEN)
    assert len(await read(stream)) == 2


async def test_an_error_wakes_who_waits() -> None:
    stream = begun(1)
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.fail(BROKEN)
    with pytest.raises(RequestError, match="the engine is gone"):
        await reading
