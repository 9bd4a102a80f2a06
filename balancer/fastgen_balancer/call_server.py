"""Serves our own Envoy's calls: a gRPC server for one client, which is on the same machine.

Each request is such a call, with two or three short messages each way. A general server's tasks,
locks and threads cost more than the answers: here a message is answered where it is read, and all
answers to what came in at once leave at once. Only what waits has a task, its receiver's own.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from hpack.exceptions import HPACKError
from hpack.hpack import Decoder

from fastgen_balancer import frames
from fastgen_balancer.calls import UNIMPLEMENTED, Call, Method
from fastgen_balancer.frames import FrameError, FrameReader

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""What may come in of a stream before its window grows again: more than a whole request. It grows
at the half."""
MAX_BLOCKS: Final = 64
"""Of headers whose path is known: Envoy's calls of one method all look the same."""

log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """One connection of Envoy's. Invariant: `_calls` holds the streams that are open, by number."""

    def __init__(self, methods: Mapping[str, Method], connections: "set[Connection]") -> None:
        self.window = frames.FIRST_WINDOW_BYTES
        """What may be sent on all streams together."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._methods = methods
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._decoder = Decoder()
        self._paths: dict[bytes, str] = {}
        self._calls: dict[int, Call] = {}
        self._ended: set[int] = set()
        """Streams whose caller says no more."""
        self._last_stream = 0
        self._call_window = frames.FIRST_WINDOW_BYTES
        self._received_bytes = 0
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and beginning of headers that go on in the next frame."""
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        # Without a table equal headers are equal bytes, which are read but once.
        values = {frames.HEADER_TABLE_SIZE: 0, frames.INITIAL_WINDOW_SIZE: WINDOW_BYTES}
        self.write(frames.settings(values))
        growth = frames.MAX_WINDOW_BYTES - frames.FIRST_WINDOW_BYTES
        self.write(frames.numbered(frames.WINDOW_UPDATE, 0, growth))

    def data_received(self, data: bytes) -> None:
        try:
            for kind, flags, stream, payload in self._reader.read(data):
                self._take(kind, flags, stream, payload)
        except FrameError as error:
            self._give_up(error.code, error)
        except HPACKError as error:
            self._give_up(frames.COMPRESSION_ERROR, error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.leave()
        self.closed.set_result(None)

    def write(self, data: bytes) -> None:
        """Sends frames, with all others that are sent before the loop turns."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def close(self) -> None:
        """Ends all calls at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_call(self, stream: int) -> None:
        """Forgets a stream that has ended on our side."""
        if stream not in self._ended:
            self.write(frames.numbered(frames.RST_STREAM, stream, frames.NO_ERROR))
        self._forget(stream)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _give_up(self, code: int, error: Exception) -> None:
        log.error("a connection of Envoy's failed", extra={"error": str(error)})
        self.write(frames.goaway(self._last_stream, code))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise FrameError(frames.PROTOCOL_ERROR, "headers that do not go on")
        if kind == frames.DATA:
            self._take_data(flags, stream, payload)
        elif kind == frames.HEADERS:
            block = bytearray(frames.content(flags, payload, is_headers=True))
            self._take_block(stream, flags, block, ends=bool(flags & frames.END_HEADERS))
        elif kind == frames.CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise FrameError(frames.PROTOCOL_ERROR, "headers that have not begun")
            stream, begun, block = self._block
            block += payload
            self._take_block(stream, begun, block, ends=bool(flags & frames.END_HEADERS))
        elif kind == frames.WINDOW_UPDATE:
            self._grow(stream, frames.read_number(payload))
        elif kind == frames.RST_STREAM:
            self._forget(stream)
        elif kind == frames.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.PUSH_PROMISE:
            raise FrameError(frames.PROTOCOL_ERROR, "a client promises nothing")

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._received_bytes += len(payload)
        if self._received_bytes >= frames.MAX_WINDOW_BYTES // 2:
            self.write(frames.numbered(frames.WINDOW_UPDATE, 0, self._received_bytes))
            self._received_bytes = 0
        if (call := self._calls.get(stream)) is None:
            return
        call.received_bytes += len(payload)
        if call.received_bytes >= WINDOW_BYTES // 2:
            self.write(frames.numbered(frames.WINDOW_UPDATE, stream, call.received_bytes))
            call.received_bytes = 0
        call.take(frames.content(flags, payload) if flags & frames.PADDED else payload)
        if flags & frames.END_STREAM:
            self._end(stream, call)

    def _take_block(self, stream: int, flags: int, block: bytearray, *, ends: bool) -> None:
        self._block = None if ends else (stream, flags, block)
        if not ends:
            if len(block) > self._decoder.max_header_list_size:
                raise FrameError(frames.PROTOCOL_ERROR, "headers without an end")
            return
        # Read in any case: the table that they may change is the next one's, too.
        path = self._path(bytes(block))
        call = self._calls.get(stream)
        if call is None and stream > self._last_stream:
            call = self._open(stream, path)
        if call is not None and flags & frames.END_STREAM:
            self._end(stream, call)

    def _path(self, block: bytes) -> str:
        has_table = self._decoder.header_table_size > 0
        if not has_table and (known := self._paths.get(block)) is not None:
            return known
        fields = {str(key): str(value) for key, value in self._decoder.decode(block)}
        path = fields.get(":path", "")
        if not has_table and len(self._paths) < MAX_BLOCKS:
            self._paths[block] = path
        return path

    def _open(self, stream: int, path: str) -> Call:
        self._last_stream = stream
        call = self._calls[stream] = Call(self, stream, self._call_window)
        if (method := self._methods.get(path)) is None:
            call.finish(UNIMPLEMENTED)
        else:
            call.receiver = method(call)
        return call

    def _end(self, stream: int, call: Call) -> None:
        if stream in self._calls:
            self._ended.add(stream)
            call.end()

    def _forget(self, stream: int) -> None:
        self._ended.discard(stream)
        if (call := self._calls.pop(stream, None)) is not None:
            call.leave()

    def _grow(self, stream: int, growth: int) -> None:
        if stream == 0:
            self.window += growth
            for each in list(self._calls.values()):
                each.pump()
        elif (call := self._calls.get(stream)) is not None:
            call.window += growth
            call.pump()

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            self._decoder.max_allowed_table_size = 0
            return
        for setting, value in frames.read_settings(payload):
            if setting == frames.INITIAL_WINDOW_SIZE:
                growth, self._call_window = value - self._call_window, value
                for number in list(self._calls):
                    self._grow(number, growth)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))


class CallServer:
    """Listens on the loopback."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._methods, self._connections), "127.0.0.1", port
        )

    async def stop(self) -> None:
        """Closes all connections at once."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(each.closed for each in connections))
