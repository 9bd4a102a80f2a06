"""Requests of gRPC's content type that no gRPC library sends: refused, and nobody is blamed."""

import asyncio

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, idle, prompt_of
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, StreamEnded, StreamReset
from small_replica import Replica, serving

from fastgen_api.names import Header, Metric
from fastgen_balancer.envoy_routes import GENERATE_PATH

from .conftest import Balance
from .test_hostile import raw

PROMPT = "The capital of France is"
TRAILERS = {"te": "trailers"}


async def call(
    port: int, headers: dict[str, str], method: str = "POST", path: str = GENERATE_PATH
) -> tuple[int | None, str]:
    """Sends one message with exactly these headers: status and words; None: there was none."""
    data = prompt_of(PROMPT, 1).SerializeToString()
    config = H2Configuration(header_encoding="latin-1", validate_outbound_headers=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = H2Connection(config)
    connection.initiate_connection()
    pseudo = {":method": method, ":scheme": "http", ":authority": "h", ":path": path}
    sent = pseudo | {"content-type": "application/grpc"} | headers
    connection.send_headers(1, list(sent.items()))
    connection.send_data(1, b"\0" + len(data).to_bytes(4, "big") + data, end_stream=True)
    told: dict[str, str] = {}
    try:
        async with asyncio.timeout(10):
            while True:
                writer.write(connection.data_to_send())
                data = await reader.read(65536)
                events = connection.receive_data(data)
                for event in events:
                    if hasattr(event, "headers"):
                        told |= dict(event.headers)
                ends = (StreamEnded, StreamReset, ConnectionTerminated)
                if not data or any(isinstance(event, ends) for event in events):
                    break
    finally:
        writer.close()
    status = told.get("grpc-status")
    return int(status) if status else None, told.get("grpc-message", "")


async def is_unharmed(balancer: Balancer, http: httpx2.AsyncClient, replicas: int) -> None:
    """Others with the same prompt are served, by as many replicas as before."""
    await asyncio.sleep(0.3)
    for _ in range(3):
        answer = await complete(http, balancer, PROMPT, 1)
        assert answer.status_code == 200, answer.text
    assert (await call(balancer.port, TRAILERS))[0] == 0
    await balancer.eventually(lambda: idle(balancer))
    assert await balancer.metric(Metric.EJECTIONS) == 0
    assert await balancer.metric(Metric.QUARANTINED_PROMPTS) == 0
    assert await balancer.metric(Metric.RETRIES) == 0
    assert await balancer.metric(Metric.REQUESTS, outcome="error") == 0
    assert await balancer.metric(Metric.ENDPOINTS) == replicas


@pytest.mark.parametrize(
    ("headers", "method", "named", "status"),
    [
        ({}, "POST", "te", grpc.StatusCode.INVALID_ARGUMENT),
        (TRAILERS, "GET", ":method", grpc.StatusCode.INVALID_ARGUMENT),
        (TRAILERS, "PUT", ":method", grpc.StatusCode.INVALID_ARGUMENT),
        ({"grpc-timeout": "1x"}, "POST", "grpc-timeout", grpc.StatusCode.INVALID_ARGUMENT),
        ({"grpc-timeout": ""}, "POST", "grpc-timeout", grpc.StatusCode.INVALID_ARGUMENT),
        ({"grpc-timeout": "123456789S"}, "POST", "grpc-timeout", grpc.StatusCode.INVALID_ARGUMENT),
        ({"grpc-encoding": "snappy"}, "POST", "grpc-encoding", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_is_no_call_is_refused_at_the_door(
    balance: Balance,
    http: httpx2.AsyncClient,
    headers: dict[str, str],
    method: str,
    named: str,
    status: grpc.StatusCode,
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        sent = headers if method != "POST" or named == "te" else TRAILERS | headers
        for path in (GENERATE_PATH, "/any/Method"):
            for _ in range(4):
                number, words = await call(balancer.port, sent, method, path)
                assert (number, named in words) == (status.value[0], True), words
        assert not one.seen
        assert not two.seen
        assert await balancer.metric(Metric.PICKS) == 0
        await is_unharmed(balancer, http, 2)


async def test_another_te_over_http_1(balance: Balance, http: httpx2.AsyncClient) -> None:
    """Over HTTP/2 it is no header at all, and Envoy ends the stream."""
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        message = prompt_of(PROMPT, 1).SerializeToString()
        body = b"\0" + len(message).to_bytes(4, "big") + message
        head = (
            f"POST {GENERATE_PATH} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nte: gzip\r\n"
            f"content-type: application/grpc\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        answer = await raw(balancer.port, head.encode() + body)
        assert b"grpc-status: 3\r\n" in answer, answer
        assert (await call(balancer.port, {"te": "gzip"}))[0] is None
        assert not one.seen
        assert not two.seen
        await is_unharmed(balancer, http, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-foo-bin", "!!!!"),
        ("grpc-trace-bin", "!!!!"),
        ("grpc-status", "x"),
        ("grpc-previous-rpc-attempts", "x"),
        ("grpc-retry-pushback-ms", "x"),
        ("grpc-internal-encoding-request", "x"),
        ("x!foo", "a"),
        ("grpc-timeout", "99999999H"),
        ("grpc-timeout", "99999999M"),
    ],
)
async def test_what_no_replica_reads_does_no_harm(
    balance: Balance, http: httpx2.AsyncClient, name: str, value: str
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        for _ in range(4):
            told = await call(balancer.port, TRAILERS | {name: value, "x-foo": "kept"})
            assert told == (0, "")
        seen = [*one.seen, *two.seen]
        assert [each["x-foo"] for each in seen] == ["kept"] * 4
        assert all(name not in each for each in seen)
        assert all(Header.WAITED in each for each in seen)
        await is_unharmed(balancer, http, 2)
