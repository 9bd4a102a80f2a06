"""Streamed chats in closed loops, with every answer's fate on record."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import openai


@dataclass(slots=True)
class Answer:
    """How one streamed request went, as the client saw it."""

    replica: str | None = None
    started: bool = False
    finished: bool = False
    status: int | None = None
    error: str | None = None
    ttft_seconds: float | None = None


@dataclass(slots=True)
class Traffic:
    """Closed loops of streamed chats, retries off, until told to stop."""

    url: str
    model: str
    max_tokens: int
    answers: list[Answer] = field(default_factory=list)
    stopping: bool = False

    async def one(self, client: openai.AsyncOpenAI, number: int) -> Answer:
        answer, begun = Answer(), time.monotonic()
        self.answers.append(answer)
        try:
            async with client.chat.completions.with_streaming_response.create(
                model=self.model,
                messages=[{"role": "user", "content": f"Count up from {number}."}],
                max_tokens=self.max_tokens,
                temperature=0,
                stream=True,
            ) as response:
                answer.status = response.status_code
                answer.replica = response.headers.get("x-fastgen-replica")
                async for line in response.iter_lines():
                    if not answer.started:
                        answer.started, answer.ttft_seconds = True, time.monotonic() - begun
                    answer.finished = answer.finished or line == "data: [DONE]"
        except openai.APIStatusError as error:
            answer.status, answer.error = error.status_code, str(error)
        except Exception as error:  # whatever the client raises is the finding
            answer.error = f"{type(error).__name__}: {error}"
        return answer

    async def loop(self, client: openai.AsyncOpenAI, first: int) -> None:
        number = first
        while not self.stopping:
            answer = await self.one(client, number)
            number += 1
            if answer.status != 200:
                await asyncio.sleep(0.2)

    @property
    def broken(self) -> list[Answer]:
        """Streams that began and were cut."""
        return [a for a in self.answers if a.started and not a.finished]

    @property
    def failed(self) -> list[Answer]:
        """Every request that did not end well."""
        return [a for a in self.answers if not a.finished]


@asynccontextmanager
async def run_traffic(
    url: str, model: str, streams: int, max_tokens: int = 24
) -> AsyncIterator[Traffic]:
    """Keeps `streams` requests open while the block runs, then lets them end."""
    traffic = Traffic(url, model, max_tokens)
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=120
    ) as client:
        loops = [asyncio.create_task(traffic.loop(client, 100 * i)) for i in range(streams)]
        try:
            yield traffic
        finally:
            traffic.stopping = True
            await asyncio.wait_for(asyncio.gather(*loops), 180)
