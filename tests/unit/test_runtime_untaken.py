"""Clients that do not read are cut off, and leave nothing behind."""

import asyncio
from collections.abc import Callable

import grpc
import pytest
import uvicorn
from message_engine import Engine, settle, token
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_runtime.engine.request import Started
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.protocols import grpc_server
from fastgen_runtime.protocols.grpc_server import GrpcServer
from fastgen_runtime.protocols.http_connection import Connection, ConnectionState
from fastgen_runtime.protocols.untaken import Untaken

NUM_CHOICES = 128
PROMPT = [504] * 90
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))


def test_only_who_takes_nothing_for_long_is_stuck() -> None:
    idle, slow, deaf = Untaken(), Untaken(), Untaken()
    for second in range(1000):
        assert not idle.is_stuck(0, second)
        assert not slow.is_stuck(70_000 + 10 * (second % 50), second)
    assert [deaf.is_stuck(size, now) for size, now in ((0, 0), (0, 900), (9, 901))] == [False] * 3
    assert [deaf.is_stuck(9 + now, now) for now in (930, 961, 962)] == [False, False, True]


async def test_a_client_that_takes_nothing_over_http_is_cut_off() -> None:
    state = ConnectionState(max_body_bytes=1000)

    async def send_much(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(64 << 20))(scope, receive, send)

    config = uvicorn.Config(send_much, http=Connection, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.read(10)
        await asyncio.sleep(0.2)
        now = loop.time()
        for later in (0.0, 59.0):
            state.expire(now + later)
        await settle()
        assert len(state.connections) == 1
        state.expire(now + 61)
        await settle()
        assert not state.connections
        writer.close()


async def test_a_client_that_takes_nothing_over_grpc_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_server, "TAKE_SECONDS", 0.3)
    engine = Engine(max_waiting=NUM_CHOICES)
    server = GrpcServer(engine.front, "r")
    port = server.bind("127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", SMALL_WINDOW) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(token_ids={"ids": PROMPT})
        request.sampling.n = NUM_CHOICES
        request.output.prompt_logprobs = 20
        call = stub.Generate(request)
        await until(lambda: len(engine.requests) == NUM_CHOICES)
        top = tuple((token_id, -1.0) for token_id in range(20))
        logprobs = (TokenLogprobs(504, -1.0, 1, top),) * (len(PROMPT) - 1)
        names = [new.request_id for new in engine.requests]
        engine.step(
            *(token(name, 5, is_last=True, started=Started(0.0, 0, logprobs)) for name in names)
        )
        await until(lambda: bool(engine.finished))
        assert engine.finished[0].output_tokens == NUM_CHOICES
        async with engine.open(num_choices=NUM_CHOICES):
            pass
        with pytest.raises(grpc.aio.AioRpcError, match="nothing of the answer was taken") as ended:
            [_ async for _ in call]
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await server.stop(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # nothing tells when
            await asyncio.sleep(0.02)
