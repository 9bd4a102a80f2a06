"""One HTTP connection, with the bounds that uvicorn's own lacks.

uvicorn's connection takes a head of any length and waits for ever for the rest of a request. And
it stops reading once a request was sent ahead of the answer to the one before, so that it never
learns that the client left.
"""

import asyncio
import uuid
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from fastgen_api.names import Header
from fastgen_api.request_id import is_request_id
from fastgen_runtime.protocols.http_completion import error_body
from fastgen_runtime.protocols.untaken import Untaken

MAX_URL_BYTES: Final = 16 << 10
MAX_HEAD_BYTES: Final = 64 << 10
"""Of a request's headers, names and values; the balancer's Envoy lets 60 KiB through."""
SILENT_SECONDS: Final = 60.0
"""A request of which nothing came for so long is given up."""
REQUEST_SECONDS: Final = 600.0
"""A request has come as a whole by then, or is given up."""
MAX_UNFINISHED_BYTES: Final = 32 << 20
"""Of bodies that are still on their way, all connections together."""
_LINGER_SECONDS: Final = 2.0
"""A refused client may go on sending so long, since it misses the answer if it is cut off."""


class ConnectionState(ServerState):
    """What all connections of a server share.

    max_body_bytes: what is kept of one body.
    """

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__()
        self._max_body_bytes = max_body_bytes
        self._max_bytes = max(MAX_UNFINISHED_BYTES, 4 * max_body_bytes)
        self._unfinished: dict[Connection, int] = {}
        self._num_bytes = 0

    def hold(self, connection: "Connection", num_bytes: int) -> None:
        """Counts an unfinished body of so many bytes.

        Where there are too many the oldest go: an honest body is on its way for a moment only.
        """
        held = min(num_bytes, self._max_body_bytes)
        self._num_bytes += held - self._unfinished.get(connection, 0)
        self._unfinished[connection] = held
        while self._num_bytes > self._max_bytes:
            oldest = next(iter(self._unfinished))
            oldest.refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "the body took so long that others needed its room; send it again",
            )

    def release(self, connection: "Connection") -> None:
        self._num_bytes -= self._unfinished.pop(connection, 0)

    def expire(self, now: float) -> None:
        """Gives up the requests that do not come; now: the loop's time, in seconds."""
        for connection in list(self.connections):
            if isinstance(connection, Connection):
                connection.cut_off(now)
                connection.expire(now)


class _Part(Enum):
    """What comes next on a connection."""

    REQUEST = auto()
    HEAD = auto()
    BODY = auto()


class _RefusedError(Exception):
    """Ends the parser's work on what came."""


class Connection(HttpToolsProtocol):
    """Answers one request at a time.

    A client that sends a request ahead of an answer gets that answer, and then the connection's
    end (RFC 9112, section 9.3.2, lets it send the rest again); until then what it sends is read
    and dropped, so that its leaving is noticed.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ConnectionState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = server_state
        self._untaken = Untaken()
        self._part = _Part.REQUEST
        self._is_deaf = False
        self._refusal = (HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        self._head_bytes = 0
        self._body_bytes = 0
        self._unparsed_bytes = 0
        self._is_awaited = True
        self._begun = self._last_byte = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        if self._part is _Part.REQUEST:
            if self._is_answering():
                self._end_after_answer()
                return
            if not self._is_awaited:
                self._begun = self.loop.time()
                self._is_awaited = True
        self._last_byte = self.loop.time()
        self._unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to what we do not speak: the request is answered as any other
        except httptools.HttpParserError:
            if self._part is _Part.REQUEST and self._is_answering():
                self._end_after_answer()
            else:
                self.refuse(*self._refusal)
            return
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self.refuse(*_too_long_head())
        elif self._part is _Part.BODY and self._body_bytes:
            self._shared.hold(self, self._body_bytes)

    def on_message_begin(self) -> None:
        if self._is_answering():
            raise _RefusedError
        super().on_message_begin()
        self._part = _Part.HEAD
        self._head_bytes = self._body_bytes = self._unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            message = f"the URL is longer than the {MAX_URL_BYTES} bytes that are taken"
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG, message
            raise _RefusedError

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refusal = _too_long_head()
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._part = _Part.BODY

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)
        if not self.cycle.response_complete:
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        self._part = _Part.REQUEST
        self._is_awaited = False
        self._unparsed_bytes = 0
        self._shared.release(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._body_bytes = 0
        self._shared.release(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self._shared.release(self)
        super().connection_lost(exc)

    def cut_off(self, now: float) -> None:
        """Ends the connection of a client that takes nothing; now: the loop's time, in seconds."""
        if self._untaken.is_stuck(self.transport.get_write_buffer_size(), now):
            self.transport.abort()

    def expire(self, now: float) -> None:
        """Gives up a request that does not come; now: the loop's time, in seconds."""
        if self._is_deaf or not self._is_awaited or self.flow.read_paused:
            return
        if now - self._last_byte > SILENT_SECONDS:
            message = f"nothing more of the request came for {SILENT_SECONDS:g} s"
        elif now - self._begun > REQUEST_SECONDS:
            message = f"the request was not there after {REQUEST_SECONDS:g} s"
        else:
            return
        if self._part is _Part.REQUEST:
            self.transport.close()  # nothing was asked
        else:
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, message)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Answers the request that is on its way, and ends the connection."""
        self._is_deaf = True
        self._shared.release(self)
        request_id = self._request_id()
        if self._part is _Part.BODY:
            cycle = self.cycle
            was_answered = cycle.response_started
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            if was_answered:
                self.transport.close()
                return
        self.flow.resume_reading()
        kind = "timeout_error" if status is HTTPStatus.REQUEST_TIMEOUT else "invalid_request_error"
        code = None if status is HTTPStatus.BAD_REQUEST else status.name.lower()
        content = msgspec.json.encode(error_body(message, kind, None, code))
        headers = [
            *self.server_state.default_headers,
            (Header.REQUEST_ID.encode(), request_id.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + content)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_after_answer(self) -> None:
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _request_id(self) -> str:
        if self._part is not _Part.REQUEST:
            scope: dict[str, Any] = dict(self.scope)
            if "request_id" in scope:
                return str(scope["request_id"])
            given = dict(self.headers).get(Header.REQUEST_ID.encode(), b"").decode("latin-1")
            if is_request_id(given):
                return given
        return uuid.uuid4().hex


def _too_long_head() -> tuple[HTTPStatus, str]:
    message = f"the headers are longer than the {MAX_HEAD_BYTES} bytes that are taken"
    return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message
