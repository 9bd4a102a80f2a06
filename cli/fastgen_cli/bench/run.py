"""A run: sends requests to an endpoint in a closed or an open loop, and keeps what came of each."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from random import Random

from fastgen_cli.bench import failures
from fastgen_cli.bench.endpoint import Call, Endpoint
from fastgen_cli.bench.keys import Keys
from fastgen_cli.bench.prompts import Prompts
from fastgen_cli.bench.record import Answer, Failure, NoAnswerError, Record
from fastgen_cli.bench.requests import Request

PAUSE_SECONDS = 0.2
"""Of a client of a closed loop after a failure: who is refused at once must not ask at once."""
CountText = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Sender:
    """How a request becomes a call. count_text: counts tokens where the endpoint does not; None:
    an answer that nobody counts is a failure."""

    endpoint: Endpoint
    prompts: Prompts
    keys: Keys
    seed: int
    count_text: CountText | None = None

    def call(self, request: Request) -> Call:
        """The same seed and number give the same prompt."""
        rng = Random(f"{self.seed} prompt {request.number}")
        prompt = self.prompts.make(request.prompt_tokens, rng)
        return Call(prompt, request.output_tokens, self.keys.of(request.number))

    def counted(self, call: Call, answer: Answer, request: Request) -> tuple[int, int]:
        """Tokens of prompt and answer; raises NoAnswerError where nobody counts them."""
        if not answer.token_seconds:
            raise NoAnswerError(Failure(failures.NO_TOKEN, 200))
        if answer.prompt_tokens is not None and answer.output_tokens is not None:
            return answer.prompt_tokens, answer.output_tokens
        if self.count_text is None:
            raise NoAnswerError(Failure(failures.NO_USAGE, 200))
        prompt = call.prompt
        tokens = self.count_text(prompt) if isinstance(prompt, str) else len(prompt)
        return tokens, self.count_text(answer.text)


@dataclass(slots=True)
class Run:
    """A run under way: what was seen so far. Seconds are since its start."""

    sender: Sender
    records: list[Record] = field(default_factory=list)
    sent: int = 0
    in_flight: int = 0
    tokens: int = 0
    """Events with tokens, so far."""
    is_complete: bool = True
    is_open: bool = False
    """Whether requests have times at which they are due."""
    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        return time.monotonic() - self.started

    async def closed(
        self, requests: Iterable[Request], clients: int, seconds: float, stop: asyncio.Event
    ) -> None:
        """So many clients send one request after the other's answer, for so many seconds.

        Answers under way then are waited for; `stop` gives them up.
        """
        self.started = time.monotonic()
        waiting = iter(requests)

        async def one_after_another() -> None:
            while self.now() < seconds and (request := next(waiting, None)) is not None:
                if (await self._send(request)).failure:
                    await asyncio.sleep(PAUSE_SECONDS)

        await self._until(stop, [one_after_another() for _ in range(clients)])

    async def open(
        self, requests: Iterable[Request], most_in_flight: int, stop: asyncio.Event
    ) -> None:
        """Requests leave when they are due, answered or not; beyond the cap they are failures."""
        self.is_open = True
        self.started = time.monotonic()

        async def send_when_due() -> None:
            async with asyncio.TaskGroup() as tasks:
                for request in requests:
                    await asyncio.sleep(max(0.0, request.at_seconds - self.now()))
                    if self.in_flight >= most_in_flight:
                        self._keep(request, self.now(), Failure(failures.NOT_SENT))
                        continue
                    tasks.create_task(self._send(request))

        await self._until(stop, [send_when_due()])

    async def _until(
        self, stop: asyncio.Event, work: list[Coroutine[object, object, None]]
    ) -> None:
        """Does the work, unless `stop` comes first."""
        tasks = [asyncio.create_task(one) for one in work]
        stopped = asyncio.create_task(stop.wait())
        everything = asyncio.gather(*tasks)
        await asyncio.wait((everything, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if everything.done():
            everything.result()
            return
        self.is_complete = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, everything, return_exceptions=True)

    async def _send(self, request: Request) -> Record:
        call = self.sender.call(request)
        self.sent += 1
        self.in_flight += 1
        sent = self.now()
        try:
            answer = await self.sender.endpoint.ask(call, self.now, self._count)
            counts = self.sender.counted(call, answer, request)
        except NoAnswerError as error:
            failure = error.failure
            hidden = self.sender.keys.hidden(failure.message)
            failure = Failure(failure.kind, failure.status, hidden)
            return self._keep(request, sent, failure)
        finally:
            self.in_flight -= 1
        return self._keep(request, sent, None, answer, counts)

    def _keep(
        self,
        request: Request,
        sent: float,
        failure: Failure | None,
        answer: Answer | None = None,
        counts: tuple[int, int] = (0, 0),
    ) -> Record:
        record = Record(
            asked_prompt_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            sent_seconds=sent,
            ended_seconds=answer.ended_seconds if answer else self.now(),
            late_seconds=max(0.0, sent - request.at_seconds) if self.is_open else 0.0,
            token_seconds=answer.token_seconds if answer else (),
            prompt_tokens=counts[0],
            output_tokens=counts[1],
            failure=failure,
        )
        self.records.append(record)
        return record

    def _count(self) -> None:
        self.tokens += 1
