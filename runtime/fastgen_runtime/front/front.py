"""The front: takes requests from every protocol, and knows how the replica is doing."""

import asyncio
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
from fastgen_runtime.engine.request import NewToken, RefusalKind
from fastgen_runtime.front.admission import max_body_bytes
from fastgen_runtime.front.generation import (
    ErrorKind,
    Generation,
    RequestError,
    TextPrompt,
    invalid,
)
from fastgen_runtime.front.goodness import End, Timings
from fastgen_runtime.front.intake import Intake
from fastgen_runtime.front.ledger import Ledger, Observer
from fastgen_runtime.front.metrics import Metrics, Rate
from fastgen_runtime.front.prompt import PromptEncoder
from fastgen_runtime.front.replica_load import ReplicaLoad, add_gauges
from fastgen_runtime.front.stream import Choice, Stream
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
        self._max_open = max_running + max_waiting
        self._streams: dict[str, Stream] = {}
        self._choices: dict[str, Choice] = {}
        self._num_open = 0
        self._num_requests = 0
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
        """The largest HTTP body that is read."""
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
        received, now = time.time(), time.monotonic()
        self._num_requests += 1
        timings = Timings(now, generation.waited_seconds or 0.0)
        stream = Stream(str(self._num_requests), timings, generation.num_choices)
        end, message = End.FAILED, None
        try:
            await self._open(generation, stream)
            yield stream
            end = End.CANCELLED
        except asyncio.CancelledError:
            passed = generation.deadline is not None and time.monotonic() >= generation.deadline
            end = End.DEADLINE if passed else End.CANCELLED
            raise
        except RequestError as error:
            broke = error.kind is ErrorKind.UNAVAILABLE and stream.command_number is not None
            end = End.FAILED if broke else _END_OF[error.kind]
            message = error.message
            raise
        finally:
            self._close(stream)
            end = End.COMPLETED if stream.is_finished else end
            self._ledger.enter(stream, generation, end, received, message)

    def count_invalid(
        self, message: str | None = None, *, request_id: str = "", protocol: str = ""
    ) -> None:
        """Counts a request that could not even be read; message: what its client was told."""
        generation = Generation(TextPrompt(""), request_id=request_id, protocol=protocol)
        stream = Stream("", Timings(time.monotonic()))
        self._ledger.enter(stream, generation, End.INVALID, time.time(), message)

    def load(self) -> ReplicaLoad:
        """From the engine's last report and the requests that it has not seen yet."""
        report, ready = self._report, self._ready
        unseen = [
            stream
            for stream in self._streams.values()
            if stream.command_number is None or stream.command_number > report.num_commands
        ]
        return ReplicaLoad(
            num_running=report.load.num_running,
            num_waiting=report.load.num_waiting + sum(stream.num_choices for stream in unseen),
            num_owed=report.load.num_owed + sum(stream.num_prompt_tokens for stream in unseen),
            max_running=self._max_running,
            num_blocks=ready.num_blocks if ready else 0,
            num_free_blocks=report.load.num_free_blocks,
            block_size=ready.block_size if ready else 0,
            tokens_per_second=self._rate.per_second(time.monotonic()),
            draining=self.draining,
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
            self._send(pace_of(slo))

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
                    kind, field = _REFUSALS[refusal.kind]
                    choice.stream.fail(RequestError(kind, refusal.message, field))
            case Ready():
                self._ready = event
                self.max_length = event.max_length
                load = Load(0, 0, 0, event.num_blocks, 0)
                self._report = Report(0, load)
                self._send(pace_of(self._ledger.slo))

    def fail(self, reason: str) -> None:
        """The engine is gone: every open request ends with an error."""
        self._failure = reason
        for stream in self._streams.values():
            stream.fail(RequestError(ErrorKind.UNAVAILABLE, reason))

    async def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Waits until no request is open; False when some are after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._streams:
                    self._closed.clear()
                    await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._intake.close()

    # ---- inside ----

    async def _open(self, generation: Generation, stream: Stream) -> None:
        """Checks the request, makes its tokens and hands it to the engine."""
        if reason := self.why_not_serving():
            raise RequestError(ErrorKind.UNAVAILABLE, reason)
        self._intake.check(generation, self.max_length)
        self._take_places(stream)
        if generation.deadline is not None:
            self._end_at(generation.deadline, stream)
        requests = await self._intake.begin(generation, stream, self.max_length)
        for request, choice in zip(requests, stream.choices, strict=True):
            self._choices[choice.engine_id] = choice
            self._send(Add(request))
        stream.command_number = self._num_commands

    def _take_places(self, stream: Stream) -> None:
        """Each choice takes a place of the engine, until the request has ended."""
        places = stream.num_choices
        if places > self._max_open:
            raise invalid(
                "n", f"is {places}, and this replica takes at most {self._max_open} choices"
            )
        if self._num_open + places > self._max_open:
            of = f", and this one asks for {places}" if places > 1 else ""
            raise RequestError(
                ErrorKind.FULL,
                f"{self._num_open} requests are open of the {self._max_open} that this replica "
                f"takes{of}",
            )
        self._num_open += places
        self._streams[stream.engine_id] = stream

    def _push(self, tokens: Sequence[NewToken], now: float) -> None:
        choices = self._choices
        for token in tokens:
            choice = choices.get(token.request_id)
            if choice is not None and choice.push(token, now):
                del choices[token.request_id]
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
        self._num_open -= stream.num_choices
        if stream.timer is not None:
            stream.timer.cancel()
        for choice in stream.choices:
            if self._choices.pop(choice.engine_id, None) is not None:
                self._send(Abort(choice.engine_id))
        self._closed.set()


_END_OF: Final = {
    ErrorKind.INVALID: End.INVALID,
    ErrorKind.UNKNOWN_MODEL: End.INVALID,
    ErrorKind.TOO_LARGE: End.INVALID,
    ErrorKind.FULL: End.REFUSED,
    ErrorKind.UNAVAILABLE: End.REFUSED,
    ErrorKind.DEADLINE: End.DEADLINE,
    ErrorKind.FAILED: End.FAILED,
}

_REFUSALS: Final = {
    RefusalKind.FULL: (ErrorKind.FULL, None),
    RefusalKind.TOO_LONG: (ErrorKind.INVALID, "prompt"),
    RefusalKind.EXPIRED: (ErrorKind.DEADLINE, None),
    RefusalKind.INVALID: (ErrorKind.INVALID, "grammar"),
    RefusalKind.FAILED: (ErrorKind.FAILED, None),
}


def pace_of(slo: SLO) -> SetPace:
    """What the SLO asks of running streams."""
    per_token, gap = slo.time_per_output_token, slo.token_gap
    return SetPace(
        seconds_per_token=None if per_token is None else per_token.milliseconds / 1e3,
        longest_gap_seconds=None if gap is None else gap.max_milliseconds / 1e3,
    )
