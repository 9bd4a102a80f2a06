"""The server of Envoy's calls, asked by grpc's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from echo_calls import PATH, Echoes

from fastgen_balancer.call_server import WINDOW_BYTES, CallServer
from fastgen_cli.plan import free_ports


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echoes, grpc.aio.Channel, CallServer]]:
    echoes, (port,) = Echoes(), free_ports(1)
    server = CallServer({PATH: echoes})
    await server.start(port)
    options = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield echoes, channel, server
    finally:
        await server.stop()


def dial(channel: grpc.aio.Channel, path: str = PATH) -> Any:
    return channel.stream_stream(path)()


async def test_messages_of_any_length_come_back_whole() -> None:
    """Beyond all windows, too: both sides have to make room for each other."""
    async with serving() as (echoes, channel, _):
        call = dial(channel)
        for length in (0, 1, 5, 16_384, 70_000, WINDOW_BYTES + 1):
            message = bytes([length % 251]) * length
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        (echo,) = echoes.all
        await echo.gone.wait()
        assert echo.left_times == 1


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with serving() as (echoes, channel, _):

        async def talk(number: int) -> None:
            call = dial(channel)
            for turn in range(3):
                told = f"{number} {turn} ".encode() * 3000
                await call.write(told)
                assert await call.read() == told
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF

        await asyncio.gather(*(talk(number) for number in range(50)))
        assert [each.left_times for each in echoes.all] == [1] * 50


async def test_a_caller_that_cancels_has_left() -> None:
    async with serving() as (echoes, channel, _):
        call = dial(channel)
        await call.write(b"hello")
        await call.read()
        call.cancel()
        await echoes.all[0].gone.wait()
        # An answer that comes too late goes nowhere, and harms no other call.
        echoes.all[0].caller.send(b"late")
        other = dial(channel)
        await other.write(b"well?")
        assert await other.read() == b"well?"
    assert [each.left_times for each in echoes.all] == [1, 1]


async def test_a_receiver_that_fails_ends_its_own_call() -> None:
    async with serving() as (echoes, channel, _):
        other, call = dial(channel), dial(channel)
        await other.write(b"before")
        assert await other.read() == b"before"
        await call.write(b"fall")
        assert await call.code() is grpc.StatusCode.UNKNOWN
        await other.write(b"after")
        assert await other.read() == b"after"
    assert [each.left_times for each in echoes.all] == [1, 1]


async def test_a_receiver_that_fails_at_the_end_harms_nobody_else() -> None:
    async with serving() as (_, channel, _):
        other, call = dial(channel), dial(channel)
        await other.write(b"before")
        assert await other.read() == b"before"
        await call.write(b"fall at the end")
        await call.read()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await other.write(b"after")
        assert await other.read() == b"after"


async def test_an_unknown_method_is_refused() -> None:
    async with serving() as (echoes, channel, _):
        call = dial(channel, "/test.Service/Other")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert not echoes.all


async def test_a_server_that_stops_ends_its_calls() -> None:
    async with serving() as (echoes, channel, server):
        call = dial(channel)
        await call.write(b"hello")
        await call.read()
        await server.stop()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert echoes.all[0].left_times == 1


async def test_a_port_that_is_taken_is_told() -> None:
    (port,) = free_ports(1)
    one, other = CallServer({}), CallServer({})
    await one.start(port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start(port)
    await one.stop()
