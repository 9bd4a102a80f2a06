"""A request's way back: tokens arrive from the engine, deltas leave to the client."""

import asyncio
from collections.abc import AsyncIterator

from fastgen_runtime.answer import Answer, Delta
from fastgen_runtime.generation import RequestError
from fastgen_runtime.goodness import Timings
from fastgen_runtime.request import FinishReason


class Stream:
    """Holds what the client has not taken yet; a slow client gets several tokens at once.

    engine_id: the request's name towards the engine; clients' ids need not be unique.
    command_number: how many commands the engine had been sent with this request's. timer: fires
    at the deadline.
    """

    __slots__ = ("_answer", "_error", "_news", "command_number", "engine_id", "timer", "timings")

    def __init__(self, engine_id: str, timings: Timings) -> None:
        self.engine_id = engine_id
        self.timings = timings
        self.command_number: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._answer: Answer | None = None
        self._error: RequestError | None = None
        self._news = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete, taken or not."""
        return self._answer is not None and self._answer.finish is not None

    @property
    def num_prompt_tokens(self) -> int:
        return self.timings.prompt_tokens

    def begin(self, answer: Answer) -> None:
        """The request goes to the engine; from now on tokens may come."""
        self._answer = answer

    def push(self, token_id: int, finish: FinishReason | None, now: float) -> None:
        """A token has come."""
        if self._answer is None or self._answer.finish is not None:
            return
        self.timings.note_token(now)
        self._answer.push(token_id, finish)
        self._news.set()

    def fail(self, error: RequestError) -> None:
        """No more tokens will come; an answer that is complete stays so."""
        if not self.is_finished and self._error is None:
            self._error = error
            self._news.set()

    def check(self) -> None:
        """Raises the error that ended the request, if one did."""
        if self._error is not None:
            raise self._error

    async def deltas(self) -> AsyncIterator[Delta]:
        """The answer, piece by piece; raises RequestError where it breaks off."""
        while True:
            await self._news.wait()
            self._news.clear()
            self.check()
            if self._answer is None:
                continue
            delta = self._answer.take()
            if delta.token_ids:
                yield delta
            if delta.finish is not None:
                return
