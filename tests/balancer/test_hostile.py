"""Requests that no decent client sends: an answer for them, and no harm to others."""

import asyncio
import json
import struct

import grpc
import httpx2
import pytest
from balancer_process import complete, generate, idle
from small_replica import Replica, serving

from fastgen_api.names import Header, Metric
from fastgen_cli.plan import free_ports

from .conftest import Balance

GENERATE = "/fastgen.v1.InferenceService/Generate"


async def raw(port: int, request: bytes) -> bytes:
    """What comes back, until the server closes or has been silent for two seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(request)
        while part := await asyncio.wait_for(reader.read(65536), 2):
            answer += part
    except TimeoutError:
        pass
    finally:
        writer.close()
    return answer


async def send_bytes(port: int, *bodies: bytes) -> grpc.StatusCode:
    """Calls Generate with these bytes as its messages."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(GENERATE)(iter(bodies), timeout=5)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("bodies", [(b"\xff\xff\xff",), (b"\x0a\x02\xff\xfe",), (), (b"", b"")])
async def test_a_malformed_message_is_the_clients_fault(
    balance: Balance, bodies: tuple[bytes, ...]
) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        for _ in range(3):
            assert await send_bytes(balancer.port, *bodies) is grpc.StatusCode.INVALID_ARGUMENT
        assert not one.seen
        assert await generate(balancer, "", 1) == ["w0 "]
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS, outcome="excluded") == 3
        assert await balancer.metric(Metric.REQUESTS) == 3


async def test_a_request_id_that_is_none(balance: Balance, http: httpx2.AsyncClient) -> None:
    """It reaches neither replica nor answer, and the log's entries of others are not lost."""
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        for bad in (b"\xff\xfe", b"x" * 10_000, b"a\tb"):
            body = b'{"prompt": "", "max_tokens": 1}'
            head = (
                b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nuser-agent: \xff\r\n"
                b"referer: \xff\r\nx-forwarded-for: \xff\r\nconnection: close\r\n"
                b"content-length: %d\r\nx-request-id: %s\r\n\r\n" % (len(body), bad)
            )
            answer = await raw(balancer.port, head + body)
            assert answer.startswith(b"HTTP/1.1 200")
            (mine,) = (
                line.split(b": ")[1]
                for line in answer.split(b"\r\n")
                if line.startswith(b"x-request-id")
            )
            assert len(mine) == 36
            assert one.seen[-1][Header.REQUEST_ID] == mine.decode()
            assert "x-fastgen-client-request-id" not in one.seen[-1]
        await asyncio.sleep(0.5)
        await balancer.eventually(lambda: idle(balancer), seconds=5)
        one.refuse = True
        refused = await complete(http, balancer, "", 1, headers={Header.REQUEST_ID: "mine-1"})
        assert (refused.status_code, refused.headers[Header.REQUEST_ID]) == (429, "mine-1")
        await balancer.eventually(
            lambda: balancer.metric(Metric.REQUESTS, outcome="refused"), seconds=5
        )
        assert "lost" not in balancer.logs[0].read_text()


async def test_deep_json_does_not_go_round_the_picker(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        await http.post(f"{balancer.url}/v1/completions", content=deep)
        assert await balancer.metric(Metric.PICKS, result="picked") == 1
        assert Header.WAITED in one.seen[0]


async def test_clients_that_vanish_at_once_leave_no_ghosts(balance: Balance) -> None:
    body = json.dumps({"prompt": "first=9", "max_tokens": 9}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with serving(Replica("one", capacity=500)) as a, balance(a) as balancer:

        async def vanish(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
            writer.write(head + body)
            await asyncio.sleep(number % 20 / 1000)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(1, 13, linger)
            writer.transport.abort()

        await asyncio.gather(*map(vanish, range(200)))
        await asyncio.sleep(0.5)
        await balancer.eventually(lambda: idle(balancer), seconds=5)


async def test_what_is_no_request_gets_an_answer(balance: Balance) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        wrong = {
            b"NONSENSE\r\n\r\n": 400,
            b"GET /v1/models HTTP/1.1\r\n\r\n": 400,
            b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n": 400,
            b"GET /v1/models HTTP/1.1\r\nhost: h\r\nx: %s\r\n\r\n" % (b"y" * 70_000): 431,
            b"GET /v1/a%2fb HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n": 400,
            b"GET /v1/models HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\n\r\n": 403,
        }
        for request, status in wrong.items():
            answer = await raw(balancer.port, request)
            assert answer.startswith(b"HTTP/1.1 %d" % status), (request[:60], answer[:300])
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["type"] == "invalid_request_error", request[:60]
        old = await raw(balancer.port, b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert old.split(b" ")[1] == b"200", old


@pytest.mark.parametrize("encoding", [b"xchunked", b"gzip, chunked"])
async def test_a_transfer_encoding_that_nobody_knows_is_named(
    balance: Balance, encoding: bytes
) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: %s\r\n\r\n"
        answer = await raw(balancer.port, head % encoding)
        assert answer.startswith(b"HTTP/1.1 501"), answer
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "transfer_encoding_unknown"
        assert error["type"] == "invalid_request_error"
        assert "transfer-encoding" in error["message"]
        await asyncio.sleep(0.5)
        assert not one.seen
        assert await balancer.metric(Metric.REQUESTS, outcome="error") == 0


async def test_the_pickers_own_http_redirects_nowhere(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        response = await http.get(f"http://127.0.0.1:{balancer.http_port}/metrics/")
        assert response.status_code == 404


async def test_the_metrics_port_serves_metrics_alone(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Who may scrape a balancer may not drain it."""
    (port,) = free_ports(1)
    async with (
        serving(Replica("one")) as a,
        balance(a, arguments=("--metrics-port", str(port))) as balancer,
    ):
        metrics = await http.get(f"http://127.0.0.1:{port}/metrics")
        assert "fastgen_balancer_endpoints" in metrics.text
        for path in ("/drain", "/readyz", "/healthz", "/metrics/"):
            assert (await http.post(f"http://127.0.0.1:{port}{path}")).status_code == 404, path
        ready = await http.get(f"http://127.0.0.1:{balancer.http_port}/readyz")
        assert ready.status_code == 200
