"""The front: takes requests from every protocol, and knows how the replica is doing."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fastgen_api.spec import SLO
from fastgen_runtime.engine.channel import (
    Abort,
    Add,
    Command,
    Event,
    Ready,
    Refused,
    Report,
    SetPace,
)
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.engine.request import NewToken
from fastgen_runtime.front.admission import max_body_bytes
from fastgen_runtime.front.ends import END_OF, ERROR_OF
from fastgen_runtime.front.generation import (
    ErrorKind,
    Generation,
    RequestError,
    TextPrompt,
)
from fastgen_runtime.front.goodness import End, Timings
from fastgen_runtime.front.intake import Intake
from fastgen_runtime.front.ledger import Ledger, Observer
from fastgen_runtime.front.metrics import Metrics, Rate
from fastgen_runtime.front.places import Places
from fastgen_runtime.front.prompt import PromptEncoder
from fastgen_runtime.front.replica_load import ReplicaLoad, add_gauges, replica_load
from fastgen_runtime.front.slo_file import pace_of
from fastgen_runtime.front.stream import Choice, Stream
from fastgen_runtime.front.submission import Submission
from fastgen_runtime.models.checkpoint import Checkpoint
from fastgen_runtime.text.detokenizer import Vocabulary

STALL_SECONDS: Final = 60.0
"""Without a sign of life for so long the engine is taken to hang; no step lasts that long."""


class Front:
    """Every open request of the replica. Never waits for a step to answer a question."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        served_name: str,
        max_length: int,
        max_running: int,
        max_waiting: int,
        metrics: Metrics,
        slo: SLO,
        send: Callable[[Command], None],
        observers: Sequence[Observer] = (),
    ) -> None:
        """observers: each is told of every request that has ended, once."""
        self.served_name = served_name
        self.metrics = metrics
        self.max_length = max_length
        self.draining = False
        self._send_command = send
        self._ledger = Ledger(metrics, slo, served_name, observers)
        self._intake = Intake(checkpoint, served_name)
        self._max_running = max_running
        self._places = Places(max_running + max_waiting)
        self._streams: dict[str, Stream] = {}
        self._choices: dict[str, Choice] = {}
        self._num_accepted = 0
        self._num_streams = 0
        self._num_commands = 0
        self._ready: Ready | None = None
        self._failure: str | None = None
        self._report = Report(0, Load(0, 0, 0, 0, 0))
        self._heard = time.monotonic()
        self._rate = Rate()
        self._closed = asyncio.Event()
        add_gauges(metrics, self.load)

    # ---- what the protocols call ----

    @property
    def max_body_bytes(self) -> int:
        """Of the largest HTTP body that is read."""
        return max_body_bytes(self.max_length)

    @property
    def encoder(self) -> PromptEncoder:
        """The model's tokenizer and chat template."""
        return self._intake.encoder

    @property
    def vocabulary(self) -> Vocabulary:
        """The texts of its tokens."""
        return self._intake.vocabulary

    @asynccontextmanager
    async def submit(self, generation: Generation) -> AsyncIterator[Stream]:
        """A stream of the answer; leaving the context early frees the request's blocks.

        Raises RequestError; counts the request once, however it ends.
        """
        async with self.accept((generation,)) as submission, self.open(submission) as stream:
            yield stream

    @asynccontextmanager
    async def accept(self, generations: Sequence[Generation]) -> AsyncIterator[Submission]:
        """Takes a request of one prompt or several, which are then to be opened one by one.

        Whoever is accepted is served to the end: a drain waits for prompts that are not open yet.
        Raises RequestError; counts the request once, however it ends.
        """
        submission = Submission(generations, time.time(), time.monotonic())
        end, message = End.FAILED, None
        self._num_accepted += 1
        try:
            self._check(submission)
            yield submission
            end = End.CANCELLED
        except (asyncio.CancelledError, GeneratorExit):
            deadline = submission.generation.deadline or math.inf
            end = End.DEADLINE if time.monotonic() >= deadline else End.CANCELLED
            raise
        except RequestError as error:
            broke = error.kind is ErrorKind.UNAVAILABLE and submission.has_begun
            end = End.FAILED if broke else END_OF[error.kind]
            message = error.message
            raise
        finally:
            self._num_accepted -= 1
            self._closed.set()
            end = End.COMPLETED if submission.is_finished else end
            self._ledger.enter(submission, end, message)

    @asynccontextmanager
    async def open(self, submission: Submission, number: int = 0) -> AsyncIterator[Stream]:
        """A stream of the answer to one of the prompts; leaving the context frees its blocks.

        Raises RequestError. Where another prompt has begun, it waits for a place.
        """
        self._num_streams += 1
        generation = submission.generations[number]
        timings = Timings(submission.arrived, submission.waited)
        stream = Stream(str(self._num_streams), timings, generation.num_choices)
        if submission.streams:
            await self._places.wait(stream.num_choices)
        else:
            self._places.take(stream.num_choices)
        self._streams[stream.engine_id] = stream
        submission.streams.append(stream)
        try:
            await self._begin(generation, stream, len(submission.generations))
            yield stream
        except RequestError as error:
            raise submission.named(error, number) from error
        finally:
            self._close(stream)

    def count_invalid(
        self, message: str | None = None, *, request_id: str = "", protocol: str = ""
    ) -> None:
        """Counts a request that could not even be read; message: what its client was told."""
        generation = Generation(TextPrompt(""), request_id=request_id, protocol=protocol)
        submission = Submission((generation,), time.time(), time.monotonic())
        self._ledger.enter(submission, End.INVALID, message)

    def load(self) -> ReplicaLoad:
        """From the engine's last report and the requests that it has not seen yet."""
        return replica_load(
            self._report,
            self._ready,
            self._streams.values(),
            self._max_running,
            self._rate.per_second(time.monotonic()),
            self.draining,
        )

    def why_not_serving(self) -> str | None:
        """None while requests are taken and the engine's heart beats, else the reason."""
        if self._failure is not None:
            return self._failure
        if self.draining:
            return "the replica is draining"
        if self._ready is None:
            return "the model is loading"
        silent = time.monotonic() - self._heard
        if silent > STALL_SECONDS:
            return f"the engine has given no sign of life for {silent:.0f} s"
        return None

    # ---- what the replica calls ----

    def set_slo(self, slo: SLO) -> None:
        """From now on requests are judged by this SLO, and streams paced by it."""
        self._ledger.slo = slo
        self.metrics.set_slo(slo)
        if self._ready is not None:
            self._send(SetPace(pace_of(slo)))

    def handle(self, event: Event) -> None:
        """Takes in what the engine says."""
        self._heard = now = time.monotonic()
        match event:
            case Report():
                self._report = event
                self._rate.add(event.num_prompt_tokens + event.num_output_tokens, now)
                self.metrics.note_step(event)
                self._push(event.tokens, now)
            case Refused(engine_id, refusal):
                if choice := self._choices.get(engine_id):
                    kind, field = ERROR_OF[refusal.kind]
                    choice.stream.fail(RequestError(kind, refusal.message, field))
            case Ready():
                self._ready = event
                self.max_length = event.max_length
                load = Load(0, 0, 0, event.num_blocks, 0)
                self._report = Report(0, load)
                self._send(SetPace(pace_of(self._ledger.slo)))

    def fail(self, reason: str) -> None:
        """The engine is gone: every open request ends with an error."""
        self._failure = reason
        for stream in self._streams.values():
            stream.fail(RequestError(ErrorKind.UNAVAILABLE, reason))

    async def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Waits until no request is open; False when some are after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._num_accepted:
                    self._closed.clear()
                    await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._intake.close()

    def _check(self, submission: Submission) -> None:
        """Raises RequestError for all that can be seen without working on it."""
        if reason := self.why_not_serving():
            raise RequestError(ErrorKind.UNAVAILABLE, reason)
        several = len(submission.generations)
        for number, generation in enumerate(submission.generations):
            try:
                self._intake.check(generation, self.max_length, several)
            except RequestError as error:
                raise submission.named(error, number) from error
        self._places.check(submission.generation.num_choices)

    async def _begin(self, generation: Generation, stream: Stream, num_prompts: int) -> None:
        """Makes the request's tokens and hands it to the engine."""
        if self._failure is not None:
            raise RequestError(ErrorKind.UNAVAILABLE, self._failure)
        if generation.deadline is not None:
            self._end_at(generation.deadline, stream)
        requests = await self._intake.begin(generation, stream, self.max_length, num_prompts)
        for request, choice in zip(requests, stream.choices, strict=True):
            self._choices[choice.engine_id] = choice
            self._send(Add(request))
        stream.command_number = self._num_commands

    def _push(self, tokens: Sequence[NewToken], now: float) -> None:
        choices = self._choices
        for token in tokens:
            choice = choices.get(token.request_id)
            if choice is not None and choice.push(token, now):
                del choices[token.request_id]
                self._places.make()
                if token.finish is None:
                    # A stop string: the engine knows nothing of it.
                    self._send(Abort(token.request_id))

    def _send(self, command: Command) -> None:
        self._num_commands += 1
        self._send_command(command)

    def _end_at(self, deadline: float, stream: Stream) -> None:
        error = RequestError(ErrorKind.DEADLINE, "the request's deadline has passed")
        delay = max(0.0, deadline - time.monotonic())
        stream.timer = asyncio.get_running_loop().call_later(delay, stream.fail, error)

    def _close(self, stream: Stream) -> None:
        if self._streams.pop(stream.engine_id, None) is None:
            return
        num_open = stream.num_incomplete
        self._places.leave(num_open, stream.num_choices - num_open)
        if stream.timer is not None:
            stream.timer.cancel()
        for choice in stream.choices:
            if self._choices.pop(choice.engine_id, None) is not None:
                self._send(Abort(choice.engine_id))
