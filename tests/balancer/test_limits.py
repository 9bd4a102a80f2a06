"""What the listener takes of one client, so that something is left for the others."""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, generate, prompt_of
from certificates import make_certificate
from small_replica import Replica, serving

from fastgen_api.v1 import inference_pb2_grpc
from fastgen_balancer.envoy_config import Addresses, bootstrap
from fastgen_balancer.envoy_listener import Limits
from fastgen_balancer.envoy_security import Security

from .conftest import Balance
from .test_hostile import raw

HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
GET = b"\x82\x86\x84\x41\x01h"
"""GET / http://h, in HPACK by its static table."""


def within(limits: Limits, security: Security = Security()) -> Callable[[Balancer], None]:  # noqa: B008
    """Writes the configuration with these limits."""

    def configure(balancer: Balancer) -> None:
        addresses = Addresses("127.0.0.1", balancer.port, balancer.picker_port, balancer.admin_port)
        made = bootstrap(addresses, str(balancer.directory), limits, security)
        (balancer.directory / "envoy.yaml").write_text(json.dumps(made))

    return configure


def error_of(answer: bytes) -> dict[str, str]:
    error: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error


async def test_paths_and_headers(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        close = b" HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
        many = b"".join(b"x-%d: y\r\n" % i for i in range(120))
        wrong = {
            b"GET /v1/" + b"a" * 2100 + close + b"\r\n": (414, "uri_too_long"),
            b"GET /v1/models" + close + many + b"\r\n": (431, "headers_too_large"),
            b"GET /v1/models" + close + b"x: " + b"y" * 70_000 + b"\r\n\r\n": (
                431,
                "headers_too_large",
            ),
        }
        for request, (status, code) in wrong.items():
            answer = await raw(balancer.port, request)
            assert answer.startswith(b"HTTP/1.1 %d" % status), (request[:60], answer[:200])
            assert error_of(answer)["code"] == code
        assert not one.seen
        fits = {f"x-{i}": "y" for i in range(80)}
        taken = await http.get(f"{balancer.url}/v1/models?{'q' * 1000}", headers=fits)
        assert taken.status_code == 200


@pytest.mark.parametrize(
    "metadata",
    [tuple((f"x-{i}", "y") for i in range(120)), (("x", "y" * 70_000),)],
    ids=["many", "long"],
)
async def test_metadata_of_grpc(balance: Balance, metadata: tuple[tuple[str, str], ...]) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
            call = channel.unary_unary("/fastgen.v1.InferenceService/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call(b"", metadata=metadata, timeout=10)
        # Envoy ends the stream, or the connection, before there is a request to answer.
        expected = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
        assert refusal.value.code() in expected
        assert not one.seen
        assert await generate(balancer, "", 1) == ["w0 "]


async def test_a_body_without_a_length_is_measured_too(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one")

    async def endless() -> object:
        for _ in range(1_000):
            yield b"x" * 65536
            await asyncio.sleep(0)

    async with serving(one) as a, balance(a) as balancer:
        url = f"{balancer.url}/v1/completions"
        try:
            answer = await http.post(url, content=endless())
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "payload_too_large"
        except (httpx2.WriteError, httpx2.ReadError):
            pass  # The connection ended while the client was still sending.
        assert not one.seen
        assert (await complete(http, balancer, "", 1)).status_code == 200


async def test_slow_requests_end(balance: Balance, http: httpx2.AsyncClient) -> None:
    """Whoever dribbles holds neither connection nor memory for long; an answer may be slow."""
    limits = Limits(header_seconds=1, upload_seconds=2)
    async with serving(Replica("one")) as a, balance(a, configure=within(limits)) as balancer:

        async def dribble(head: bytes) -> tuple[float, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
            began = time.monotonic()
            writer.write(head)

            async def on() -> None:
                while True:
                    await asyncio.sleep(0.3)
                    writer.write(b"a")
                    await writer.drain()

            more = asyncio.create_task(on())
            answer = await asyncio.wait_for(reader.read(65536), 10)
            more.cancel()
            writer.close()
            return time.monotonic() - began, answer

        body = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 100000\r\n\r\n"
        fair = asyncio.create_task(complete(http, balancer, "gap=0.2", 20))
        (_, slow_body), (seconds, slow_head), *_ = await asyncio.gather(
            dribble(body),
            dribble(b"GET /v1/models HTTP/1.1\r\nhost: h\r\nx-a: "),
            *(dribble(body) for _ in range(50)),
        )
        assert seconds < 5
        assert slow_head == b"" or slow_head.startswith(b"HTTP/1.1 408")
        assert slow_body.startswith(b"HTTP/1.1 408")
        assert error_of(slow_body)["code"] == "request_timeout"
        assert (await fair).text.endswith("[DONE]\n\n")


async def test_a_handshake_that_never_ends(balance: Balance, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    make_certificate(tmp_path / "made")
    (tmp_path / "made/server.crt").rename(tmp_path / "made/tls.crt")
    (tmp_path / "made/server.key").rename(tmp_path / "made/tls.key")
    limits = Limits(handshake_seconds=1)
    options = {
        "bootstrap_arguments": ("--tls", str(tmp_path / "made")),
        "configure": within(limits, Security(tls=True)),
    }
    async with serving(Replica("one")) as a, balance(a, **options) as balancer:
        reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
        assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()


async def test_connections_have_a_number(balance: Balance, http: httpx2.AsyncClient) -> None:
    limits = Limits(max_connections=4)
    async with serving(Replica("one")) as a, balance(a, configure=within(limits)) as balancer:
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 30))
        await asyncio.sleep(0.5)
        opened = [await asyncio.open_connection("127.0.0.1", balancer.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
        assert await asyncio.wait_for(reader.read(1), 5) == b"", "one too many"
        for _, each in (*opened, (reader, writer)):
            each.close()
        assert (await stream).text.endswith("[DONE]\n\n")
        await asyncio.sleep(0.3)
        assert (await complete(http, balancer, "", 1)).status_code == 200


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def rapid_resets(number: int) -> bytes:
    ids = range(1, 2 * number, 2)
    cancel = struct.pack(">I", 8)
    return b"".join(
        frame(HEADERS, END_STREAM | END_HEADERS, each, GET) + frame(RST_STREAM, 0, each, cancel)
        for each in ids
    )


FLOODS = {
    "rapid resets": rapid_resets(5_000),
    "pings": frame(PING, 0, 0, b"\0" * 8) * 50_000,
    "settings": frame(SETTINGS, 0, 0) * 50_000,
    "empty data": frame(HEADERS, END_HEADERS, 1, GET) + frame(0, 0, 1) * 50_000,
    "endless headers": frame(HEADERS, 0, 1, GET)
    + frame(CONTINUATION, 0, 1, b"\x00\x01x\x7f\x81\x01" + b"y" * 256) * 2_000,
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_ends_its_connection_alone(
    balance: Balance, http: httpx2.AsyncClient, name: str
) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 30))
        await asyncio.sleep(0.3)
        reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
        # Answers are not read: they pile up on the other side.
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + FLOODS[name])
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(writer.drain(), 5)
        assert (await stream).text.endswith("[DONE]\n\n"), "others do not feel it"
        reader._transport.resume_reading()  # type: ignore[attr-defined]

        async def to_the_end() -> None:
            while await reader.read(65536):
                pass

        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(to_the_end(), 10)
        writer.close()
        assert (await complete(http, balancer, "", 1)).status_code == 200


async def test_streams_of_one_connection_have_a_number(balance: Balance) -> None:
    """The next ones wait at the client for their turn."""
    one = Replica("one", capacity=100)
    limits = Limits(max_streams=5)
    async with serving(one) as a, balance(a, configure=within(limits)) as balancer:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            most = 0

            async def stream() -> int:
                nonlocal most
                number = 0
                async for _ in stub.Generate(prompt_of("gap=0.05", 10)):
                    most = max(most, one.running)
                    number += 1
                return number

            assert await asyncio.gather(*(stream() for _ in range(12))) == [10] * 12
        assert most <= 5
