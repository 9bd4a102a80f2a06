"""Serves our own Envoy's calls: a gRPC server for one client, which is on the same machine.

Each request is such a call, with two or three short messages each way. A general server's tasks,
locks and threads cost more than the answers: here a message is answered where it is read, and all
answers to what came in at once leave at once. Only what waits has a task, its receiver's own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from fastgen_balancer.calls import UNIMPLEMENTED, Call, Method

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""What may come in of a stream before its window grows again: more than a whole request."""
MAX_WINDOW_BYTES: Final = H2Connection.MAX_WINDOW_INCREMENT
FIRST_WINDOW_BYTES: Final = 65_535
"""Of a connection until its window grows (RFC 9113, 6.9.2)."""
MAX_STREAMS: Final = 1024
"""At once on one connection, which one more would end: well above what Envoy opens."""
SETTINGS: Final = {
    SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
    SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
}
# Of a request's headers nothing but the path is read, and an answer's are always the same.
CONFIGURATION: Final = H2Configuration(
    client_side=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)

log = logging.getLogger(__name__)


class Http(H2Connection):
    """HTTP/2 that remembers no more of closed streams than what may still be under way to them."""

    # The library's number takes 9 MB of each connection.
    MAX_CLOSED_STREAMS = MAX_STREAMS


class Connection(asyncio.Protocol):
    """One connection of Envoy's. Invariant: `_calls` holds the streams that are open, by number."""

    def __init__(self, methods: Mapping[str, Method], connections: "set[Connection]") -> None:
        self.http: H2Connection = Http(CONFIGURATION)
        self.http.local_settings = Settings(client=False, initial_values=SETTINGS)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._methods = {path.encode(): method for path, method in methods.items()}
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._will_flush = False
        self._takers: dict[type, Callable[[Any], None]] = {
            RequestReceived: self._take_request,
            DataReceived: self._take_data,
            StreamEnded: self._take_end,
            StreamReset: self._take_reset,
            WindowUpdated: self._take_window,
            RemoteSettingsChanged: self._take_settings,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        self.http.initiate_connection()
        self.http.increment_flow_control_window(MAX_WINDOW_BYTES - FIRST_WINDOW_BYTES)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self.http.receive_data(data)
        except ProtocolError as error:
            log.error("a connection of Envoy's failed", extra={"error": str(error)})
            self._hang_up()
            return
        if events and isinstance(events[-1], ConnectionTerminated):
            # `h2` can send nothing more then, to the calls that are open either.
            self._hang_up()
            return
        for event in events:
            if (take := self._takers.get(type(event))) is not None:
                take(event)
        self.flush()

    def pause_writing(self) -> None:
        # Whoever does not read the answers is not to have more of them kept.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._forget_all()
        self.closed.set_result(None)

    def flush(self) -> None:
        """Sends what `http` holds, with all that it is given before the loop turns."""
        if not self._will_flush:
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """Ends all calls at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_call(self, stream: int) -> None:
        """Forgets a stream that has ended on our side."""
        # Closed it is where the caller has ended, too.
        with contextlib.suppress(StreamClosedError):
            self.http.reset_stream(stream)
        self._forget(stream)

    def _flush(self) -> None:
        self._will_flush = False
        data = self.http.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hang_up(self) -> None:
        self._forget_all()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _take_request(self, event: RequestReceived) -> None:
        path = next((value for key, value in event.headers if key == b":path"), b"")
        call = self._calls[event.stream_id] = Call(self, event.stream_id)
        if (method := self._methods.get(path)) is None:
            call.finish(UNIMPLEMENTED)
        else:
            call.receiver = method(call)

    def _take_data(self, event: DataReceived) -> None:
        if (call := self._calls.get(event.stream_id)) is not None:
            call.take(event.data)
        self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _take_end(self, event: StreamEnded) -> None:
        if (call := self._calls.get(event.stream_id)) is not None:
            call.end()

    def _take_reset(self, event: StreamReset) -> None:
        self._forget(event.stream_id)

    def _take_window(self, event: WindowUpdated) -> None:
        if event.stream_id == 0:
            self._pump_all()
        elif (call := self._calls.get(event.stream_id)) is not None:
            call.pump()

    def _take_settings(self, event: RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            self._pump_all()

    def _pump_all(self) -> None:
        for call in list(self._calls.values()):
            call.pump()

    def _forget(self, stream: int) -> None:
        if (call := self._calls.pop(stream, None)) is not None:
            call.leave()

    def _forget_all(self) -> None:
        for stream in list(self._calls):
            self._forget(stream)


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
