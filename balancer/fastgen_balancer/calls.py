"""A gRPC call on one stream of HTTP/2: messages both ways, as their framing has them.

The format: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import grpc
from h2.connection import H2Connection
from h2.exceptions import StreamClosedError, StreamIDTooLowError

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Above any body that Envoy lets through, so that the limit is in one place."""
PREFIX_BYTES: Final = 5
"""Of gRPC, before each message: whether it is compressed, then its length (big-endian)."""
OK: Final[int] = grpc.StatusCode.OK.value[0]
UNKNOWN: Final[int] = grpc.StatusCode.UNKNOWN.value[0]
RESOURCE_EXHAUSTED: Final[int] = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNIMPLEMENTED: Final[int] = grpc.StatusCode.UNIMPLEMENTED.value[0]
_HEAD: Final = ((":status", "200"), ("content-type", "application/grpc"))

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

    http: H2Connection
    """Holds what is to be sent, and the windows that it has to keep to."""

    def flush(self) -> None:
        """Sends what `http` holds, before the loop turns."""

    def close_call(self, stream: int) -> None:
        """Notes that a stream has ended on our side."""


class Call:
    """One stream of a connection.

    Invariants: what is `_pending` has no room in a window; nothing is sent after the status, and
    this after all that is pending.
    """

    __slots__ = (
        "_has_head", "_is_over", "_line", "_pending", "_rest", "_status", "_stream", "receiver",
    )  # fmt: skip

    def __init__(self, line: Line, stream: int) -> None:
        self.receiver: Receiver | None = None
        self._line = line
        self._stream = stream
        self._has_head = False
        self._is_over = False
        self._pending = bytearray()
        self._rest = bytearray()
        self._status: int | None = None

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
        if not self._is_over and self._status is None:
            self._pending += b"\0" + len(message).to_bytes(4, "big") + message
            self.pump()

    def fail(self, error: BaseException) -> None:
        """Ends the call by our own fault."""
        log.error("a call of Envoy's failed", exc_info=error)
        self.finish(UNKNOWN)

    def finish(self, status: int) -> None:
        """Ends the call once all is sent."""
        if not self._is_over and self._status is None:
            self._status = status
            self.pump()

    def pump(self) -> None:
        """Sends what the windows have room for."""
        try:
            self._pump()
        except (StreamClosedError, StreamIDTooLowError):
            # All that is read at once is known to `http` before any of it is told here: a reset,
            # too, which is told next, and that it has forgotten the stream since.
            self._pending.clear()
        self._line.flush()

    def _pump(self) -> None:
        http, pending = self._line.http, self._pending
        if pending and not self._has_head:
            http.send_headers(self._stream, _HEAD)
            self._has_head = True
        while pending:
            window = http.local_flow_control_window(self._stream)
            length = min(len(pending), window, http.max_outbound_frame_size)
            if length <= 0:
                return
            http.send_data(self._stream, bytes(pending[:length]))
            del pending[:length]
        if self._status is not None and not self._is_over:
            trailers = (("grpc-status", str(self._status)),)
            headers = trailers if self._has_head else _HEAD + trailers
            http.send_headers(self._stream, headers, end_stream=True)
            self._line.close_call(self._stream)

    def end(self) -> None:
        """Notes that the caller says no more, which is Envoy's way of leaving."""
        self._dismiss()
        self.finish(OK)

    def leave(self) -> None:
        """Notes that the stream is closed, on whichever side."""
        if not self._is_over:
            self._is_over = True
            self._pending.clear()
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
