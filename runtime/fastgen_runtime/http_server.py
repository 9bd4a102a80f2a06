"""HTTP: OpenAI's API, health and metrics."""

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastgen_api.names import Header
from fastgen_runtime.completion_format import ResponseFormat
from fastgen_runtime.front import Front
from fastgen_runtime.generation import (
    ErrorKind,
    Generation,
    RequestError,
    is_request_id,
    waited_seconds,
)
from fastgen_runtime.openai_api import (
    chat_generation,
    completion_generation,
    decode_chat,
    decode_completion,
    error_body,
    wants_usage,
)

_STATUS: Final = {
    ErrorKind.INVALID: (400, "invalid_request_error", None),
    ErrorKind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.FULL: (429, "rate_limit_error", "replica_full"),
    ErrorKind.UNAVAILABLE: (503, "service_unavailable_error", "unavailable"),
    ErrorKind.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
}
_RETRY_SECONDS: Final = "1"
_KEEP_ALIVE_SECONDS: Final = 75
_JSON: Final = "application/json"


class HttpServer:
    """The HTTP port."""

    def __init__(self, front: Front, replica: str) -> None:
        config = uvicorn.Config(
            make_app(front, replica),
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._socket: socket.socket | None = None

    def bind(self, host: str, port: int) -> int:
        """Takes the port, and returns it; raises OSError when it cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=2048)
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Serves until told to stop."""
        await self._server.serve(sockets=[self._socket] if self._socket else None)

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the replica, which drains first."""
        yield


def make_app(front: Front, replica: str) -> ASGIApp:
    """The application; every response names the replica and repeats the request's id."""
    endpoints = _Endpoints(front)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{model:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/metrics", endpoints.metrics),
        ],
        exception_handlers={HTTPException: _http_error, RequestError: _request_error},
    )
    return _Named(app, replica)


class _Named:
    """Gives each request an id and names the replica in each response."""

    def __init__(self, app: ASGIApp, replica: str) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(Header.REQUEST_ID, "")
        request_id = given if is_request_id(given) else uuid.uuid4().hex
        scope["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[Header.REQUEST_ID] = request_id
                headers[Header.REPLICA] = self._replica
            await send(message)

        await self._app(scope, receive, send_named)


class _Endpoints:
    """The routes of one front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        with self._counting_invalid():
            decoded = decode_chat(await self._body(request))
            generation = chat_generation(decoded, _waited(request))
        form = self._format(request, True, wants_usage(decoded))
        return _Completion(self._front, generation, form, bool(decoded.stream))

    async def completions(self, request: Request) -> Response:
        with self._counting_invalid():
            decoded = decode_completion(await self._body(request))
            generation = completion_generation(decoded, _waited(request))
        form = self._format(request, False, wants_usage(decoded))
        return _Completion(self._front, generation, form, bool(decoded.stream))

    async def models(self, request: Request) -> Response:
        return _json(200, {"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self._front.served_name:
            raise RequestError(
                ErrorKind.UNKNOWN_MODEL, f"model {name[:128]!r} is not here", "model"
            )
        return _json(200, self._model())

    async def health(self, request: Request) -> Response:
        reason = self._front.why_not_serving()
        if reason is None:
            return _json(200, {"status": "serving"})
        return _json(503, {"status": "not serving", "reason": reason})

    async def metrics(self, request: Request) -> Response:
        return Response(self._front.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._front.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "fastgen",
            "max_model_len": self._front.max_length,
        }

    def _format(self, request: Request, is_chat: bool, with_usage: bool) -> ResponseFormat:
        return ResponseFormat(
            is_chat=is_chat,
            response_id=("chatcmpl-" if is_chat else "cmpl-") + request.scope["request_id"],
            model=self._front.served_name,
            created=int(time.time()),
            with_usage=with_usage,
        )

    async def _body(self, request: Request) -> bytes:
        """The request's body, read no further than to its limit."""
        limit = self._front.max_body_bytes
        body = bytearray()
        too_large = RequestError(
            ErrorKind.TOO_LARGE, f"the body is larger than the {limit} bytes that are taken"
        )
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_large
        return bytes(body)

    @contextlib.contextmanager
    def _counting_invalid(self) -> Iterator[None]:
        try:
            yield
        except RequestError:
            self._front.count_invalid()
            raise
        except ClientDisconnect:
            raise RequestError(ErrorKind.INVALID, "the body was cut short") from None


class _Completion(Response):
    """Answers one generation; no header leaves before the first token."""

    def __init__(
        self, front: Front, generation: Generation, form: ResponseFormat, is_stream: bool
    ) -> None:
        self._front = front
        self._generation = generation
        self._form = form
        self._is_stream = is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        leaving = asyncio.ensure_future(_until_disconnected(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            answering.cancel()
            # A client that left gets nothing more, and its request frees its blocks at once.
            with contextlib.suppress(asyncio.CancelledError):
                await answering

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async with self._front.submit(self._generation) as stream:
                texts = []
                async for delta in stream.deltas():
                    if self._is_stream:
                        if not begun:
                            await send(_start(stream.num_prompt_tokens, b"text/event-stream"))
                        events = self._form.events(delta, is_first=not begun)
                        begun = True
                        await send(_part(events, more=delta.finish is None))
                        continue
                    texts.append(delta.text)
                    if delta.finish is not None and delta.usage is not None:
                        await send(_start(stream.num_prompt_tokens, _JSON.encode()))
                        whole = self._form.whole("".join(texts), delta.finish, delta.usage)
                        await send(_part(whole, more=False))
        except RequestError as error:
            if not begun:
                await _error_response(error)(scope, receive, send)
                return
            # Returning with the body open cuts the connection: nobody takes it for a whole answer.
            event = b"data: " + msgspec.json.encode(_error_content(error)) + b"\n\n"
            await send(_part(event, more=True))


def _start(num_prompt_tokens: int, content_type: bytes) -> Message:
    headers = [
        (b"content-type", content_type),
        (b"cache-control", b"no-cache"),
        (Header.PROMPT_TOKENS.encode(), str(num_prompt_tokens).encode()),
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _part(body: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _waited(request: Request) -> float | None:
    return waited_seconds(request.headers.get(Header.WAITED))


def _json(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type=_JSON)


def _error_content(error: RequestError) -> dict[str, Any]:
    _, kind, code = _STATUS[error.kind]
    return error_body(error.message, kind, error.field, code)


def _error_response(error: RequestError) -> Response:
    headers = {}
    if error.kind in (ErrorKind.FULL, ErrorKind.UNAVAILABLE):
        headers["retry-after"] = _RETRY_SECONDS
    if error.kind is ErrorKind.TOO_LARGE:
        headers["connection"] = "close"  # the rest of the body is not read
    return _json(_STATUS[error.kind][0], _error_content(error), headers)


async def _request_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    return _error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    body = error_body(str(error.detail), "invalid_request_error", None, None)
    return _json(error.status_code, body, dict(error.headers or {}))
