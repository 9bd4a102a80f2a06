"""A connection's patience, with a real server on loopback and the clock's times as given."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastgen_runtime.protocols import http_connection
from fastgen_runtime.protocols.http_connection import Connection, ConnectionState

BODY_BEGUN = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n123"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        return
    await Response(body)(scope, receive, send)


@asynccontextmanager
async def connected() -> AsyncIterator[
    tuple[ConnectionState, asyncio.StreamReader, asyncio.StreamWriter]
]:
    state = ConnectionState(max_body_bytes=1000)
    config = uvicorn.Config(echo, http=Connection, lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(config, state, {}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield state, reader, writer
        finally:
            writer.close()


async def arrival(state: ConnectionState) -> float:
    """The loop's time, once all that was sent is there."""
    await asyncio.sleep(0.05)
    assert len(state.connections) == 1
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("begun", [BODY_BEGUN, BODY_BEGUN[:20], BODY_BEGUN[:-3]])
async def test_a_request_that_does_not_go_on_is_given_up(begun: bytes) -> None:
    async with connected() as (state, reader, writer):
        writer.write(begun)
        now = await arrival(state)
        state.expire(now + 59)
        state.expire(now + 61)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"] == {
        "message": "nothing more of the request came for 60 s",
        "type": "timeout_error",
        "param": None,
        "code": "request_timeout",
    }


async def test_a_request_that_goes_on_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 10.0)
    async with connected() as (state, reader, writer):
        writer.write(BODY_BEGUN)
        now = await arrival(state)
        state.expire(now + 9)
        state.expire(now + 11)
        assert b"the request was not there after 10 s" in await reader.read()


async def test_a_connection_that_asks_nothing_is_closed_without_a_word() -> None:
    async with connected() as (state, reader, _):
        state.expire(await arrival(state) + 61)
        assert await reader.read() == b""


async def test_who_waits_for_an_answer_or_between_requests_is_let_alone() -> None:
    async with connected() as (state, reader, writer):
        for _ in range(2):
            writer.write(BODY_BEGUN + b"4567890")
            await reader.readuntil(b"1234567890")
            state.expire(await arrival(state) + 6000)
