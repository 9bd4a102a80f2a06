"""One HTTP request for tokens: its answer, whole or streamed, and its errors."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fastgen_api.names import Header
from fastgen_runtime.front.answer import Usage, sum_of
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import ErrorKind, RequestError
from fastgen_runtime.protocols.asked import Asked
from fastgen_runtime.protocols.prompt_batch import BatchDelta, deltas_of, open_batch
from fastgen_runtime.protocols.response_head import ResponseWriter

_STATUS: Final = {
    ErrorKind.INVALID: (400, "invalid_request_error", None),
    ErrorKind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.FULL: (429, "rate_limit_error", "replica_full"),
    ErrorKind.UNAVAILABLE: (503, "service_unavailable_error", "unavailable"),
    ErrorKind.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
    ErrorKind.FAILED: (500, "server_error", "model_failed"),
}
_RETRY_SECONDS: Final = "1"
_JSON: Final = "application/json"


class Completion(Response):
    """Answers one HTTP request; no header leaves before the first token."""

    def __init__(self, front: Front, asked: Asked, writer: ResponseWriter) -> None:
        self._front = front
        self._asked = asked
        self._writer = writer
        self._has_begun = False

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
        try:
            async with self._open() as deltas:
                if self._asked.is_stream:
                    await self._stream(deltas, send)
                else:
                    await self._send_whole(deltas, send)
        except RequestError as error:
            error = self._asked.named(error)
            if not self._has_begun:
                await error_response(error)(scope, receive, send)
                return
            # Returning with the body open cuts the connection: nobody takes it for a whole answer.
            event = b"data: " + msgspec.json.encode(_error_content(error)) + b"\n\n"
            await send(_part(event, more=True))

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncIterator[BatchDelta]]:
        generations = self._asked.generations
        if len(generations) > 1:
            async with open_batch(self._front, generations) as deltas:
                yield deltas
            return
        async with self._front.submit(generations[0]) as stream:
            yield deltas_of(0, stream)

    async def _stream(self, deltas: AsyncIterator[BatchDelta], send: Send) -> None:
        asked, writer = self._asked, self._writer
        usages: list[Usage] = []
        num_output: Counter[int] = Counter()
        async for one in deltas:
            delta = one.delta
            await self._prepare(one)
            if not self._has_begun:
                self._has_begun = True
                # The length of one of several prompts says nothing of the whole.
                told = one.num_prompt_tokens if len(asked.generations) == 1 else None
                await send(_start(told, b"text/event-stream"))
            so_far = None
            if asked.told.with_usage_so_far:
                num_output[one.prompt] += len(delta.token_ids)
                so_far = Usage(one.num_prompt_tokens, num_output[one.prompt])
            events = writer.events(one.prompt * asked.told.num_choices, delta, so_far)
            if delta.usage is not None:
                usages.append(delta.usage)
                if len(usages) == len(asked.generations):
                    await send(_part(events + writer.end(sum_of(usages)), more=False))
                    continue  # it was the last one
            if events:
                await send(_part(events, more=True))

    async def _send_whole(self, deltas: AsyncIterator[BatchDelta], send: Send) -> None:
        usages: list[Usage] = []
        async for one in deltas:
            await self._prepare(one)
            self._writer.add(one.prompt * self._asked.told.num_choices, one.delta)
            if one.delta.usage is not None:
                usages.append(one.delta.usage)
        usage = sum_of(usages)
        self._has_begun = True
        await send(_start(usage.prompt_tokens, _JSON.encode()))
        for piece in self._writer.whole(usage):
            await send(_part(piece, more=True))
            await asyncio.sleep(0)
        await send(_part(b"", more=False))

    async def _prepare(self, one: BatchDelta) -> None:
        if one.delta.prompt is not None:
            base = one.prompt * self._asked.told.num_choices
            for _ in self._writer.prepare(base, one.delta.prompt):
                await asyncio.sleep(0)


def _start(num_prompt_tokens: int | None, content_type: bytes) -> Message:
    headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
    if num_prompt_tokens is not None:
        headers.append((Header.PROMPT_TOKENS.encode(), str(num_prompt_tokens).encode()))
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
