"""The HTTP application: OpenAI's API, health and metrics."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastgen_api.names import Header
from fastgen_api.request_id import is_request_id
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import TRACEPARENT, ErrorKind, RequestError, waited_seconds
from fastgen_runtime.log import log_problem
from fastgen_runtime.protocols.asked import Origin
from fastgen_runtime.protocols.chat_format import ChatWriter
from fastgen_runtime.protocols.completion_format import CompletionWriter
from fastgen_runtime.protocols.http_completion import (
    Completion,
    error_body,
    error_response,
    json_response,
)
from fastgen_runtime.protocols.openai_chat import read_chat
from fastgen_runtime.protocols.openai_completion import read_completion
from fastgen_runtime.protocols.response_head import VERSION, ResponseHead
from fastgen_runtime.protocols.tokenize_api import read_detokenize, read_tokenize, tokenize
from fastgen_runtime.text.token_text import TokenTexts

_DISCARDED_BYTES: Final = 32 << 20
"""A body that is too large is read so far, since a client that still sends may miss the answer."""


def make_app(front: Front) -> ASGIApp:
    """The application; every response repeats the request's id."""
    endpoints = _Endpoints(front)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{model:path}", endpoints.model),
            Route("/tokenize", endpoints.tokenize, methods=["POST"]),
            Route("/detokenize", endpoints.detokenize, methods=["POST"]),
            Route("/health", endpoints.health),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
        ],
        exception_handlers={
            HTTPException: _http_error,
            RequestError: _request_error,
            Exception: _internal_error,
        },
    )
    # A redirect would lead to whatever host the client's own header names.
    app.router.redirect_slashes = False
    return _Named(app)


class _Named:
    """Gives each request an id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(Header.REQUEST_ID, "")
        request_id = given if is_request_id(given) else uuid.uuid4().hex
        scope["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[Header.REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_named)


class _Endpoints:
    """The routes of one front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._texts = TokenTexts(front.encoder.tokenizer)
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        with self._counting_invalid(request):
            body, origin = await self._body(request), _origin(request)
            asked = read_chat(body, origin, self._front.encoder.tools)
        head = self._head("chatcmpl", request)
        return Completion(self._front, asked, ChatWriter(head, asked.told, self._texts))

    async def completions(self, request: Request) -> Response:
        with self._counting_invalid(request):
            asked = read_completion(await self._body(request), _origin(request))
        head = self._head("cmpl", request)
        return Completion(self._front, asked, CompletionWriter(head, asked.told, self._texts))

    async def tokenize(self, request: Request) -> Response:
        asked = read_tokenize(await self._body(request))
        self._check_model(asked.model)
        return json_response(200, await tokenize(asked, self._front, self._texts))

    async def detokenize(self, request: Request) -> Response:
        asked = read_detokenize(await self._body(request))
        self._check_model(asked.model)
        return json_response(200, {"prompt": await self._front.encoder.decode(asked.tokens)})

    async def models(self, request: Request) -> Response:
        return json_response(200, {"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return json_response(200, self._model())

    async def version(self, request: Request) -> Response:
        return json_response(200, {"version": VERSION})

    async def health(self, request: Request) -> Response:
        reason = self._front.why_not_serving()
        if reason is None:
            return json_response(200, {"status": "serving"})
        return json_response(503, {"status": "not serving", "reason": reason})

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

    def _head(self, prefix: str, request: Request) -> ResponseHead:
        response_id = f"{prefix}-{request.scope['request_id']}"
        return ResponseHead(response_id, self._front.served_name, int(time.time()))

    def _check_model(self, name: str) -> None:
        if name not in ("", self._front.served_name):
            raise RequestError(
                ErrorKind.UNKNOWN_MODEL, f"model {name[:128]!r} is not here", "model"
            )

    async def _body(self, request: Request) -> bytes:
        """The request's body, kept no further than to its limit."""
        limit = self._front.max_body_bytes
        body = bytearray()
        too_large = RequestError(
            ErrorKind.TOO_LARGE, f"the body is larger than the {limit} bytes that are taken"
        )
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > _DISCARDED_BYTES:
            raise too_large
        size = 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    body += piece
                elif size > _DISCARDED_BYTES:
                    raise too_large
        except ClientDisconnect:
            raise RequestError(ErrorKind.INVALID, "the body was cut short") from None
        if size > limit:
            raise too_large
        return bytes(body)

    @contextlib.contextmanager
    def _counting_invalid(self, request: Request) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            request_id = request.scope["request_id"]
            self._front.count_invalid(error.message, request_id=request_id, protocol="http")
            raise


def _origin(request: Request) -> Origin:
    return Origin(
        request_id=request.scope["request_id"],
        traceparent=request.headers.get(TRACEPARENT),
        waited_seconds=waited_seconds(request.headers.get(Header.WAITED)),
        model_judged=Header.MODEL_JUDGED in request.headers,
        is_unwitnessed=Header.UNWITNESSED in request.headers,
    )


async def _request_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    message, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette's order is a set's.
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        message = (
            f"{request.method} does nothing at {request.url.path[:128]}; {headers['Allow']} does"
        )
    body = error_body(message, "invalid_request_error", None, None)
    return json_response(error.status_code, body, headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    log_problem("a request met a defect", error, path=request.url.path)
    message = "the replica met an error of its own; its log tells more"
    body = error_body(message, "server_error", None, "internal_error")
    # Starlette raises the error anew, upon which uvicorn ends the connection.
    return json_response(500, body, {"Connection": "close"})
