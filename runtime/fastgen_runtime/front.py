"""The front: takes requests from every protocol, and knows how the replica is doing."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from fastgen_api.names import Metric
from fastgen_api.spec import SLO
from fastgen_runtime.admission import check_size, max_body_bytes, new_request
from fastgen_runtime.answer import Answer
from fastgen_runtime.channel import Abort, Add, Command, Event, Ready, Refused, Report
from fastgen_runtime.checkpoint import Checkpoint
from fastgen_runtime.detokenizer import Vocabulary
from fastgen_runtime.engine import Load
from fastgen_runtime.generation import ErrorKind, Generation, RequestError, check
from fastgen_runtime.goodness import End, Timings, classify, is_counted_by_balancer
from fastgen_runtime.metrics import Metrics, Rate
from fastgen_runtime.prompt import PromptEncoder
from fastgen_runtime.request import RefusalKind
from fastgen_runtime.stream import Stream

STALL_SECONDS: Final = 60.0
"""Without a sign of life for so long the engine is taken to hang; no step lasts that long."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How loaded the replica is, with what the engine has not seen yet."""

    num_running: int
    num_waiting: int
    num_owed: int
    max_running: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    tokens_per_second: float
    draining: bool


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
    ) -> None:
        self.served_name = served_name
        self.metrics = metrics
        self.max_length = max_length
        self.draining = False
        self._slo = slo
        self._send_command = send
        self._encoder = PromptEncoder(checkpoint)
        self._vocabulary = Vocabulary(checkpoint.tokenizer)
        self._defaults = checkpoint.generation_defaults
        self._max_running = max_running
        self._max_open = max_running + max_waiting
        self._streams: dict[str, Stream] = {}
        self._num_requests = 0
        self._num_commands = 0
        self._ready: Ready | None = None
        self._failure: str | None = None
        self._report = Report(0, Load(0, 0, 0, 0, 0))
        self._heard = time.monotonic()
        self._rate = Rate()
        self._closed = asyncio.Event()
        self._add_gauges()

    # ---- what the protocols call ----

    @property
    def max_body_bytes(self) -> int:
        """The largest HTTP body that is read."""
        return max_body_bytes(self.max_length)

    @property
    def encoder(self) -> PromptEncoder:
        """The model's tokenizer and chat template."""
        return self._encoder

    @asynccontextmanager
    async def submit(self, generation: Generation) -> AsyncIterator[Stream]:
        """A stream of the answer; leaving the context early frees the request's blocks.

        Raises RequestError; counts the request once, however it ends.
        """
        now = time.monotonic()
        self._num_requests += 1
        stream = Stream(str(self._num_requests), Timings(now, generation.waited_seconds or 0.0))
        end = End.FAILED
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
            raise
        finally:
            self._close(stream)
            self._count(stream, End.COMPLETED if stream.is_finished else end, generation)

    def count_invalid(self) -> None:
        """Counts a request that could not even be read."""
        timings = Timings(time.monotonic())
        self.metrics.count_request(classify(timings, End.INVALID, timings.arrived, self._slo))

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
            num_waiting=report.load.num_waiting + len(unseen),
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
        """From now on requests are judged by this SLO."""
        self._slo = slo
        self.metrics.set_slo(slo)

    def handle(self, event: Event) -> None:
        """Takes in what the engine says."""
        self._heard = now = time.monotonic()
        match event:
            case Ready():
                self._ready = event
                self.max_length = event.max_length
                load = Load(0, 0, 0, event.num_blocks, 0)
                self._report = Report(0, load)
            case Refused(engine_id, refusal):
                kind = ErrorKind.FULL if refusal.kind is RefusalKind.FULL else ErrorKind.INVALID
                if refused := self._streams.get(engine_id):
                    refused.fail(RequestError(kind, refusal.message, "prompt"))
            case Report():
                self._report = event
                self._rate.add(event.num_prompt_tokens + event.num_output_tokens, now)
                self.metrics.note_step(event)
                for token in event.tokens:
                    stream = self._streams.get(token.request_id)
                    if stream is None or stream.is_finished:
                        continue
                    stream.push(token.token_id, token.finish, now)
                    if stream.is_finished and token.finish is None:
                        # A stop string: the engine knows nothing of it.
                        self._send(Abort(token.request_id))

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
        self._encoder.close()

    # ---- inside ----

    async def _open(self, generation: Generation, stream: Stream) -> None:
        """Checks the request, makes its tokens and hands it to the engine."""
        if reason := self.why_not_serving():
            raise RequestError(ErrorKind.UNAVAILABLE, reason)
        if generation.model not in ("", self.served_name):
            name = generation.model[:128]
            message = f"model {name!r} is not served here; this is {self.served_name!r}"
            raise RequestError(ErrorKind.UNKNOWN_MODEL, message, "model")
        check(generation)
        check_size(generation.prompt, self.max_length, self._encoder.text_bound)
        if len(self._streams) >= self._max_open:
            raise RequestError(
                ErrorKind.FULL, f"{self._max_open} requests are open, as many as this replica takes"
            )
        self._streams[stream.engine_id] = stream
        if generation.deadline is not None:
            self._end_at(generation.deadline, stream)
        token_ids = await self._encoder.encode(generation.prompt)
        stream.check()
        new = new_request(generation, stream.engine_id, token_ids, self.max_length, self._defaults)
        stream.timings.prompt_tokens = len(token_ids)
        stream.begin(Answer(self._vocabulary, len(token_ids), generation.stop))
        self._send(Add(new))
        stream.command_number = self._num_commands

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
        if stream.timer is not None:
            stream.timer.cancel()
        if stream.command_number is not None and not stream.is_finished:
            self._send(Abort(stream.engine_id))
        self._closed.set()

    def _count(self, stream: Stream, end: End, generation: Generation) -> None:
        if generation.waited_seconds is not None and is_counted_by_balancer(end):
            return
        timings = stream.timings
        self.metrics.count_request(classify(timings, end, time.monotonic(), self._slo))
        self.metrics.observe_latencies(timings)

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge(Metric.RUNNING_REQUESTS, "Requests that hold blocks.",
              lambda: self.load().num_running)  # fmt: skip
        gauge(Metric.WAITING_REQUESTS, "Requests that wait for a place.",
              lambda: self.load().num_waiting)  # fmt: skip
        gauge(Metric.OWED_TOKENS, "Tokens that open requests still have to compute.",
              lambda: self.load().num_owed)  # fmt: skip
        gauge(Metric.KV_USAGE, "Share of the KV blocks in use.", self._kv_usage)

    def _kv_usage(self) -> float:
        load = self.load()
        return 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0


_END_OF: Final = {
    ErrorKind.INVALID: End.INVALID,
    ErrorKind.UNKNOWN_MODEL: End.INVALID,
    ErrorKind.TOO_LARGE: End.INVALID,
    ErrorKind.FULL: End.REFUSED,
    ErrorKind.UNAVAILABLE: End.REFUSED,
    ErrorKind.DEADLINE: End.DEADLINE,
}
