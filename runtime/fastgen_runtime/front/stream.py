"""A request's way back: tokens arrive from the engine, deltas leave to the client."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from msgspec import structs

from fastgen_runtime.engine.request import NewToken, Started
from fastgen_runtime.front.answer import Answer, Delta, PromptEcho, Usage
from fastgen_runtime.front.generation import RequestError
from fastgen_runtime.front.goodness import Timings, TokenTimes


class Choice:
    """One of a request's answers. engine_id: its name towards the engine."""

    __slots__ = ("answer", "engine_id", "has_news", "index", "is_begun", "started", "stream",
                 "times")  # fmt: skip

    def __init__(
        self, stream: "Stream", engine_id: str, index: int, times: TokenTimes, answer: Answer
    ) -> None:
        self.stream = stream
        self.engine_id = engine_id
        self.index = index
        self.times = times
        self.answer = answer
        self.started: Started | None = None
        self.has_news = False
        self.is_begun = False

    def push(self, token: NewToken, now: float) -> bool:
        """A token has come; whether it was the last one."""
        self.times.note(now)
        answer = self.answer
        answer.push(token.token_id, token.finish, token.logprobs)
        if token.started is not None:
            self.started = token.started
            answer.cached_tokens = token.started.cached_tokens
        is_complete = answer.finish is not None
        if is_complete:
            self.times.is_complete = True
        self.stream.tell(self, is_complete)
        return is_complete


class Stream:
    """Holds what the client has not taken yet; a slow client gets several tokens at once.

    engine_id: the request's name towards the engine; clients' ids need not be unique.
    num_choices: how many places of the engine it takes. command_number: how many commands the
    engine had been sent with the last of this request's. timer: fires at the deadline.
    """

    __slots__ = ("_echo", "_error", "_lacks_logprobs", "_news", "_num_incomplete", "_num_untold",
                 "_waiter", "choices", "command_number", "engine_id", "num_choices", "timer",
                 "timings")  # fmt: skip

    def __init__(self, engine_id: str, timings: Timings, num_choices: int = 1) -> None:
        self.engine_id = engine_id
        self.timings = timings
        self.num_choices = num_choices
        self.choices: Sequence[Choice] = ()
        self.command_number: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._echo: PromptEcho | None = None
        self._lacks_logprobs = False
        self._error: RequestError | None = None
        self._news: list[Choice] = []
        self._num_incomplete = self._num_untold = num_choices
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every choice is complete, taken or not."""
        return not self._num_incomplete

    @property
    def num_incomplete(self) -> int:
        """Choices that have not had their last token."""
        return self._num_incomplete

    @property
    def num_prompt_tokens(self) -> int:
        return self.timings.prompt_tokens

    @property
    def usage(self) -> Usage:
        """Tokens so far. The prompt counts once; cached is what its first reader found so."""
        answers = [choice.answer for choice in self.choices]
        started = [choice.started for choice in self.choices if choice.started is not None]
        return Usage(
            prompt_tokens=self.timings.prompt_tokens,
            output_tokens=sum(answer.num_output_tokens for answer in answers),
            cached_tokens=min((start.cached_tokens for start in started), default=0),
        )

    def begin(
        self,
        choices: Sequence[Choice],
        echo: PromptEcho | None = None,
        wants_prompt_logprobs: bool = False,
    ) -> None:
        """The request goes to the engine; from now on tokens may come.

        echo: goes with the first delta of each choice. wants_prompt_logprobs: these are added to
        it, and come with the first choice's first token.
        """
        self.choices = choices
        self._echo = echo
        self._lacks_logprobs = wants_prompt_logprobs

    def tell(self, choice: Choice, is_complete: bool) -> None:
        """A choice has a token more; wakes the reader once, however many do."""
        if is_complete:
            self._num_incomplete -= 1
        if not choice.has_news:
            choice.has_news = True
            self._news.append(choice)
        self._wake()

    def fail(self, error: RequestError) -> None:
        """No more tokens will come; an answer that is complete stays so."""
        if not self.is_finished and self._error is None:
            self._error = error
            self._wake()

    def check(self) -> None:
        """Raises the error that ended the request, if one did."""
        if self._error is not None:
            raise self._error

    async def deltas(self) -> AsyncIterator[Delta]:
        """The choices, piece by piece and in turn; raises RequestError where they break off."""
        while self._num_untold:
            while self._error is None and not self._can_tell():
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self.check()
            news, self._news = self._news, []
            if len(news) > 1:
                news.sort(key=_index_of)
            for choice in news:
                yield self._delta(choice)

    def _can_tell(self) -> bool:
        if self._lacks_logprobs and self._echo is not None:
            started = self.choices[0].started
            if started is None:
                return False
            self._echo = replace(self._echo, logprobs=started.prompt_logprobs)
            self._lacks_logprobs = False
        return bool(self._news)

    def _delta(self, choice: Choice) -> Delta:
        choice.has_news = False
        delta = choice.answer.take(None if choice.is_begun else self._echo)
        choice.is_begun = True
        if delta.finish is None:
            return delta
        self._num_untold -= 1
        if self.num_choices == 1:
            return delta
        return structs.replace(delta, usage=None if self._num_untold else self.usage)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _index_of(choice: Choice) -> int:
    return choice.index
