"""One HTTP request for tokens: its answer, whole or streamed, and its errors."""

import asyncio
import contextlib
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fastgen_api.names import Header
from fastgen_runtime.completion_format import ResponseFormat
from fastgen_runtime.front import Front
from fastgen_runtime.generation import ErrorKind, Generation, RequestError

_STATUS: Final = {
    ErrorKind.INVALID: (400, "invalid_request_error", None),
    ErrorKind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.FULL: (429, "rate_limit_error", "replica_full"),
    ErrorKind.UNAVAILABLE: (503, "service_unavailable_error", "unavailable"),
    ErrorKind.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
}
_RETRY_SECONDS: Final = "1"
_JSON: Final = "application/json"


class Completion(Response):
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
                await error_response(error)(scope, receive, send)
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


def error_body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    """OpenAI's error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def json_response(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type=_JSON)


def _error_content(error: RequestError) -> dict[str, Any]:
    _, kind, code = _STATUS[error.kind]
    return error_body(error.message, kind, error.field, code)


def error_response(error: RequestError) -> Response:
    headers = {}
    if error.kind in (ErrorKind.FULL, ErrorKind.UNAVAILABLE):
        headers["retry-after"] = _RETRY_SECONDS
    if error.kind is ErrorKind.TOO_LARGE:
        headers["connection"] = "close"  # the rest of the body is not read
    return json_response(_STATUS[error.kind][0], _error_content(error), headers)
