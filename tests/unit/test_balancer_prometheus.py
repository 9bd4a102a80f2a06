"""What becomes of Prometheus' answers."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config, Server

from fastgen_api.names import Outcome, Target
from fastgen_balancer import prometheus
from fastgen_balancer.prometheus import parse, read_metrics
from fastgen_balancer.promql import Selector, Windows, snapshot
from fastgen_balancer.signals import MetricSignals, Unknown

Handler = Callable[[Request], Awaitable[Response]]
Serve = Callable[[Handler], Awaitable[str]]
SELECTOR = Selector("chat", "team-a")
NOW = 1_700_000_000.0


def answer(*samples: tuple[str, str, object]) -> bytes:
    """A vector of (part, key, value)."""
    result = [
        {"metric": {"part": part} | ({"key": key} if key else {}), "value": [NOW, str(value)]}
        for part, key, value in samples
    ]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return json.dumps(body).encode()


def read(body: bytes, status: int = 200) -> MetricSignals | Unknown:
    return parse(status, body, SELECTOR, Windows())


def test_query_selects_by_our_own_labels_only() -> None:
    text = snapshot(SELECTOR, Windows(40.0, 300.0))
    assert 'fastgen_running_requests{deployment="chat",deployment_namespace="team-a"}' in text
    assert "[40000ms]" in text
    assert "[300000ms]" in text
    assert text.count("{") == text.count('{deployment="chat",deployment_namespace="team-a"}')
    assert "job" not in text


def test_a_full_answer() -> None:
    signals = read(
        answer(
            ("sampled", "10.0.0.1:8000", NOW - 3),
            ("present", "10.0.0.1:8000", 0),
            ("sampled", "10.0.0.2:8000", NOW - 1),
            ("work", "10.0.0.1:8000", 0.42),
            ("running", "10.0.0.1:8000", 5),
            ("waiting_floor", "10.0.0.1:8000", 0),
            ("running", "10.0.0.9:8000", 5),
            ("arriving", "", 0.5),
            ("arriving_requests", "", 2),
            ("done", "", 0.42),
            ("others", "", 7),
            ("queued", "", 0),
            ("short", "good", 30),
            ("short", "refused", 2),
            ("short", "excluded", 5),
            ("short", "of_a_newer_version", 5),
            ("long", "good", 300),
            ("misses", "ttft", 3),
        )
    )
    assert isinstance(signals, MetricSignals)
    first, second = signals.replicas
    assert (first.instance, first.age_seconds, first.whole_window) == ("10.0.0.1:8000", 3.0, True)
    assert (first.work, first.running, first.waiting_floor) == (0.42, 5.0, 0.0)
    assert (first.waiting, first.kv_usage) == (None, None)
    assert (second.whole_window, second.work) == (False, None)
    assert (signals.arriving, signals.arriving_requests, signals.done) == (0.5, 2.0, 0.42)
    assert signals.queued_requests == 0.0
    assert signals.queue_growth is None
    assert signals.short is not None
    assert (signals.short.good, signals.short.total, signals.short.refused) == (30.0, 32.0, 2.0)
    assert signals.short.counts[Outcome.EXCLUDED] == 5.0
    assert signals.long is not None
    assert signals.long.misses == {Target.TTFT: 3.0}


def test_nan_is_neither_zero_nor_empty() -> None:
    signals = read(answer(("done", "", "NaN"), ("queued", "", "+Inf"), ("running", "a", 1)))
    assert isinstance(signals, MetricSignals)
    assert (signals.done, signals.queued_requests) == (None, None)
    assert signals.not_numbers == ("done", "queued")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, answer(), "NoSeries"),
        (200, answer(("others", "", 3)), "LabelMismatch"),
        (200, b"<html>", "BadAnswer"),
        (200, b'{"status":"success"}', "BadAnswer"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "BadAnswer"),
        (200, answer(("tokens", "", "many")), "BadAnswer"),
        (400, b'{"status":"error","errorType":"bad_data","error":"parse"}', "QueryFailed"),
        (200, b'{"status":"error","errorType":"timeout","error":"late"}', "QueryFailed"),
        (502, b"Bad Gateway", "BadAnswer"),
        (500, answer(("tokens", "", 1)), "QueryFailed"),
    ],
)
def test_what_is_no_answer_is_unknown(status: int, body: bytes, reason: str) -> None:
    signals = read(body, status)
    assert isinstance(signals, Unknown)
    assert signals.reason == reason
    assert signals.message


@pytest.fixture
async def served() -> AsyncIterator[Serve]:
    """Starts a web server on loopback with the given handler; its address."""
    servers: list[tuple[Server, asyncio.Task[None]]] = []

    async def start(handler: Handler) -> str:
        app = Starlette(routes=[Route("/prefix/api/v1/query", handler, methods=["POST"])])
        server = Server(Config(app, port=0, log_config=None, lifespan="off"))
        task = asyncio.create_task(server.serve())
        servers.append((server, task))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, task in servers:
        server.should_exit = True
        await task


async def test_credentials_travel_in_a_header_and_are_never_logged(
    served: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Response:
        await request.body()
        seen.append(request)
        return Response(answer(("tokens", "", 1)), media_type="application/json")

    address = await served(handler)
    with caplog.at_level(logging.DEBUG):
        async with httpx2.AsyncClient() as http:
            url = f"http://scaler:hunter2@{address}/prefix/"
            signals = await read_metrics(http, url, SELECTOR, Windows())
    assert isinstance(signals, MetricSignals)
    assert seen[0].headers["authorization"].startswith("Basic ")
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("pause_seconds", "reason"), [(0.05, "Timeout"), (0.0, "BadAnswer")], ids=["slow", "endless"]
)
async def test_an_answer_that_does_not_end_is_unknown(
    served: Serve, monkeypatch: pytest.MonkeyPatch, pause_seconds: float, reason: str
) -> None:
    """Else its leader would hold the lease, and decide nothing for ever."""
    monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 1_000_000)

    async def handler(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(pause_seconds)
                yield b" " * (1 if pause_seconds else 10_000)

        return StreamingResponse(pieces())

    address = await served(handler)
    async with httpx2.AsyncClient() as http:
        url = f"http://{address}/prefix"
        async with asyncio.timeout(20):
            signals = await read_metrics(
                http, url, SELECTOR, Windows(), 0.5 if pause_seconds else 10
            )
    assert isinstance(signals, Unknown)
    assert signals.reason == reason


async def test_a_silent_prometheus_is_unknown(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT_SECONDS", 0.1)

    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.5)
        return Response(answer())

    address = await served(handler)
    async with httpx2.AsyncClient() as http:
        late = await read_metrics(http, f"http://{address}/prefix", SELECTOR, Windows())
        missing = await read_metrics(http, f"http://{address}/wrong", SELECTOR, Windows())
        gone = await read_metrics(http, "http://127.0.0.1:9", SELECTOR, Windows())
    assert isinstance(late, Unknown)
    assert isinstance(missing, Unknown)
    assert isinstance(gone, Unknown)
    assert (late.reason, missing.reason, gone.reason) == ("Timeout", "BadAnswer", "Unreachable")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (None, "NotConfigured"),
        ("ftp://host", "InvalidUrl"),
        ("http://", "InvalidUrl"),
        ("http://host/?token=hunter2", "InvalidUrl"),
        ("http://ho st:x", "InvalidUrl"),
    ],
)
async def test_a_useless_url_is_unknown(url: str | None, reason: str) -> None:
    async with httpx2.AsyncClient() as http:
        signals = await read_metrics(http, url, SELECTOR, Windows())
    assert isinstance(signals, Unknown)
    assert signals.reason == reason
    assert "hunter2" not in signals.message
