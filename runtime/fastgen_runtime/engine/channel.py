"""The channel between front and engine process: messages and the two ends of a socket.

One ZeroMQ PAIR socket on this machine only. No high-water mark: an engine never waits for its
front, and a front bounds what it sends by the number of requests that it lets in.
"""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.engine.request import NewRequest, NewToken, Refusal


class Add(msgspec.Struct, frozen=True, tag=True):
    """Takes on a request; the engine answers with tokens, or with Refused."""

    request: NewRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forgets a request; nothing more is told of it."""

    request_id: str


class SetPace(msgspec.Struct, frozen=True, tag=True):
    """How fast requests should be served, from the SLO."""

    pace: Pace


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ends the engine process after its current step."""


Command = Add | Abort | SetPace | Stop


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded. max_length: most tokens of a request."""

    num_blocks: int
    block_size: int
    max_length: int


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start: a `names.StartupFailure` and a sentence."""

    reason: str
    sentence: str


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine's last words, once it had started."""

    sentence: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The engine does not take a request."""

    request_id: str
    refusal: Refusal


class Report(msgspec.Struct, frozen=True, tag=True):
    """Sent after each step, and while idle as a sign of life.

    num_commands: commands carried out so far, so that the front knows which the load includes.
    num_cached_tokens: prompt tokens that the step's new requests found in the prefix cache.
    predicted_seconds: what the latency model expected of the step; None before it knows anything.
    budget_tokens: the most tokens that the step could have had. num_drafted_tokens,
    num_accepted_tokens: guessed tokens that were computed, and those of them that came.
    """

    num_commands: int
    load: Load
    tokens: tuple[NewToken, ...] = ()
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_step_tokens: int = 0
    step_seconds: float = 0.0
    num_cached_tokens: int = 0
    predicted_seconds: float | None = None
    budget_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


Event = Ready | StartFailed | EngineFailed | Refused | Report

_encoder: Final = msgspec.msgpack.Encoder()
_commands: Final = msgspec.msgpack.Decoder(Command)
_events: Final = msgspec.msgpack.Decoder(Event)


class FrontEnd:
    """The front's end: binds, sends commands, receives events."""

    def __init__(self) -> None:
        self.address, self._directory = _new_address()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.bind(self.address)

    def send(self, command: Command) -> None:
        """Sends at once; without a high-water mark nothing has to be awaited."""
        self._socket.send(_encoder.encode(command))

    async def events(self) -> AsyncIterator[Event]:
        """Events until the task is cancelled."""
        while True:
            yield _events.decode(await self._socket.recv())

    def remove_file(self) -> None:
        """Once the engine has connected nobody else needs the address: no exit can leave it."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.remove_file()


def _new_address() -> tuple[str, str | None]:
    """An address that only this user reaches and its folder, where any folder can be written."""
    try:
        directory = tempfile.mkdtemp(prefix="fastgen-")
    except OSError:
        # No writable folder at all: a name without a file, which Linux has.
        return f"ipc://@fastgen-{secrets.token_hex(16)}", None
    return f"ipc://{directory}/engine", directory


class EngineEnd:
    """The engine's end: connects, receives commands, sends events."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.connect(address)

    def send(self, event: Event) -> None:
        self._socket.send(_encoder.encode(event))

    def commands(self, wait_seconds: float) -> Iterator[Command]:
        """The commands that are here, after waiting for the first one as long as told."""
        if not self._socket.poll(int(wait_seconds * 1000)):
            return
        while True:
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield _commands.decode(message)

    def close(self) -> None:
        """Delivers what was sent, then closes."""
        self._context.destroy(linger=1000)
