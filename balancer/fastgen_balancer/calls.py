"""A gRPC call on one stream of HTTP/2: messages both ways, as their framing has them."""

import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import grpc

from fastgen_balancer import frames

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Above any body that Envoy lets through, so that the limit is in one place."""
PREFIX_BYTES: Final = 5
"""Of gRPC, before each message: whether it is compressed, then its length (big-endian)."""
OK: Final[int] = grpc.StatusCode.OK.value[0]
UNKNOWN: Final[int] = grpc.StatusCode.UNKNOWN.value[0]
RESOURCE_EXHAUSTED: Final[int] = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNIMPLEMENTED: Final[int] = grpc.StatusCode.UNIMPLEMENTED.value[0]
# HPACK (RFC 7541): `:status` 200 has a number; the others are literals, which change no table.
_HEAD: Final = b"\x88\x0f\x10\x10application/grpc"

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who answers one call."""

    def receive(self, message: bytes) -> None:
        """Takes a message; whatever it raises ends the call."""

    def left(self) -> None:
        """The caller needs no answer any more; called once, whichever way a call ends."""


class Caller(Protocol):
    """Who has called, as a receiver sees it."""

    def send(self, message: bytes) -> None:
        """Sends an answer; nothing when the caller has left."""

    def fail(self, error: BaseException) -> None:
        """Ends the call by our own fault."""


Method: TypeAlias = Callable[[Caller], Receiver]


class Line(Protocol):
    """The connection of a call."""

    window: int
    """Bytes that may be sent on all streams together."""

    def write(self, data: bytes) -> None:
        """Sends frames, in the order of the calls of this."""

    def close_call(self, stream: int) -> None:
        """Notes that a stream has ended on our side."""


class Call:
    """One stream of a connection.

    Invariants: what is `_pending` has no room in a window; nothing is sent after the trailers, and
    these after all that is pending.
    """

    __slots__ = (
        "_has_head", "_is_over", "_line", "_pending", "_rest", "_stream", "_trailers",
        "received_bytes", "receiver", "window",
    )  # fmt: skip

    def __init__(self, line: Line, stream: int, window: int) -> None:
        self.receiver: Receiver | None = None
        self.window = window
        """Bytes that may be sent on this stream."""
        self.received_bytes = 0
        """Since the caller was told last that it may send more."""
        self._line = line
        self._stream = stream
        self._has_head = False
        self._is_over = False
        self._pending = b""
        self._rest = bytearray()
        self._trailers: bytes | None = None

    def take(self, data: bytes) -> None:
        """Takes a part of the stream, and gives the receiver the messages that are whole now."""
        rest = self._rest
        if not rest and len(data) == PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big"):
            # Nearly all: one message in one frame.
            self._take_message(data[0], memoryview(data))
            return
        rest += data
        while len(rest) >= PREFIX_BYTES and not self._is_over:
            end = PREFIX_BYTES + int.from_bytes(rest[1:PREFIX_BYTES], "big")
            if end > PREFIX_BYTES + MAX_MESSAGE_BYTES:
                self.finish(RESOURCE_EXHAUSTED)
                return
            if len(rest) < end:
                return
            whole = bytes(memoryview(rest)[:end])
            del rest[:end]
            self._take_message(whole[0], memoryview(whole))

    def _take_message(self, compression: int, whole: memoryview) -> None:
        if compression:
            self.finish(UNIMPLEMENTED)
        elif self.receiver is not None:
            try:
                self.receiver.receive(bytes(whole[PREFIX_BYTES:]))
            except Exception as error:
                self.fail(error)

    def send(self, message: bytes) -> None:
        """Sends an answer; nothing when the caller has left."""
        if self._is_over or self._trailers is not None:
            return
        if not self._has_head:
            self._has_head = True
            head = frames.frame(frames.HEADERS, frames.END_HEADERS, self._stream, _HEAD)
            self._line.write(head)
        self._pending += b"\0" + len(message).to_bytes(4, "big") + message
        self.pump()

    def fail(self, error: BaseException) -> None:
        """Ends the call by our own fault."""
        log.error("a call of Envoy's failed", exc_info=error)
        self.finish(UNKNOWN)

    def finish(self, status: int) -> None:
        """Ends the call once all is sent."""
        if self._trailers is None and not self._is_over:
            word = str(status).encode()
            block = b"\0\x0bgrpc-status" + bytes((len(word),)) + word
            self._trailers = block if self._has_head else _HEAD + block
            self.pump()

    def pump(self) -> None:
        """Sends what the windows have room for."""
        line = self._line
        while self._pending:
            length = min(len(self._pending), self.window, line.window, frames.MAX_FRAME_BYTES)
            if length <= 0:
                return
            line.write(frames.frame(frames.DATA, 0, self._stream, self._pending[:length]))
            self._pending = self._pending[length:]
            self.window -= length
            line.window -= length
        if self._trailers is not None and not self._is_over:
            flags = frames.END_HEADERS | frames.END_STREAM
            line.write(frames.frame(frames.HEADERS, flags, self._stream, self._trailers))
            line.close_call(self._stream)

    def end(self) -> None:
        """Notes that the caller says no more, which is Envoy's way of leaving."""
        self._dismiss()
        self.finish(OK)

    def leave(self) -> None:
        """Notes that the stream is closed, on whichever side."""
        if not self._is_over:
            self._is_over = True
            self._pending = b""
            self._rest.clear()
            self._dismiss()

    def _dismiss(self) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            try:
                receiver.left()
            except Exception:
                # What goes wrong with one call is not to reach the connection's others.
                log.exception("the end of a call of Envoy's failed")
