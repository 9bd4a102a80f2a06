"""Requests at a bounded rate, and what the API server puts off; over real HTTP."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
from aiohttp import web
from waiting import wait_until

from fastgen_operator.connection import (
    ATTEMPTS,
    LONGEST_WAIT_SECONDS,
    Gate,
    Pace,
    wait_seconds,
)

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


def test_a_burst_goes_at_once_and_the_rest_evenly() -> None:
    pace = Pace(per_second=10, burst=3)
    waits = [pace.wait_seconds(now=100.0) for _ in range(6)]
    assert waits == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_a_pause_of_the_burst_fills_it_again() -> None:
    pace = Pace(per_second=10, burst=3)
    for _ in range(3):
        pace.wait_seconds(now=0.0)
    assert [pace.wait_seconds(now=10.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_nobody_goes_before_the_end_of_a_pause_and_then_one_by_one() -> None:
    pace = Pace(per_second=10, burst=3)
    pace.pause(until=5.0)
    pace.pause(until=2.0)
    assert [pace.wait_seconds(now=0.0) for _ in range(3)] == pytest.approx([5.0, 5.1, 5.2])


@pytest.mark.parametrize(
    ("code", "text", "seconds"),
    [(429, "7", 7), (429, "0", 0), (429, "", 1), (429, "Fri, 07 Nov 2025 23:59:59 GMT", 1),
     (429, "99999", LONGEST_WAIT_SECONDS), (503, "7", 7), (503, "", 0), (200, "", 0)],
)  # fmt: skip
def test_how_long_the_api_server_wants_to_be_left_alone(
    code: int, text: str, seconds: float
) -> None:
    assert wait_seconds(httpx2.Response(code, headers={"Retry-After": text})) == seconds


@contextlib.asynccontextmanager
async def gate_to(
    serve: Serve, counted: list[tuple[str, int]]
) -> AsyncIterator[httpx2.AsyncClient]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gate = Gate(httpx2.AsyncHTTPTransport(), Pace(1000, 1000), lambda *call: counted.append(call))
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with httpx2.AsyncClient(base_url=url, transport=gate) as client:
        yield client
        await runner.cleanup()


async def test_what_is_put_off_is_sent_again_after_the_time_that_was_asked_for() -> None:
    bodies: list[str] = []

    async def busy_at_first(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.text())
        if len(bodies) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.Response(text="done")

    counted: list[tuple[str, int]] = []
    async with gate_to(busy_at_first, counted) as client:
        began = time.monotonic()
        answer = await client.post("/x", content=b"body")
        assert time.monotonic() - began >= 0.9
    assert answer.text == "done"
    assert bodies == ["body", "body"]
    assert counted == [("POST", 429), ("POST", 200)]


async def test_others_wait_too_when_the_api_server_asks_for_it() -> None:
    at: list[float] = []

    async def busy_at_first(_: web.Request) -> web.StreamResponse:
        at.append(time.monotonic())
        if len(at) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.Response()

    counted: list[tuple[str, int]] = []
    async with gate_to(busy_at_first, counted) as client:
        first = asyncio.create_task(client.get("/a"))
        await wait_until("the first refusal", lambda: counted == [("GET", 429)])
        await client.get("/b")
        await first
    assert len(at) == 3
    assert min(at[1:]) - at[0] >= 0.9


async def test_an_api_server_that_stays_busy_is_told_upwards() -> None:
    async def busy(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "0"})

    counted: list[tuple[str, int]] = []
    async with gate_to(busy, counted) as client:
        answer = await client.get("/x")
        assert answer.status_code == 429
        assert answer.json() == {"message": "busy"}
    assert counted == [("GET", 429)] * ATTEMPTS


def failing(times: int, code: int) -> Serve:
    """Fails so often, with a status or a broken connection, then is well."""
    failures = iter(range(times))

    async def serve(request: web.Request) -> web.StreamResponse:
        if next(failures, None) is None:
            return web.Response()
        if code == 0 and request.transport:
            request.transport.abort()
        return web.Response(status=code or 500)

    return serve


@pytest.mark.parametrize("code", [0, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_what_fails_in_passing_is_repeated_where_that_does_no_harm(
    method: str, code: int
) -> None:
    counted: list[tuple[str, int]] = []
    async with gate_to(failing(2, code), counted) as client:
        assert (await client.request(method, "/x")).status_code == 200
    assert counted == [(method, code), (method, code), (method, 200)]


@pytest.mark.parametrize(("method", "code"), [("POST", 503), ("GET", 404), ("PATCH", 409)])
async def test_what_may_be_done_twice_or_would_fail_again_is_not_repeated(
    method: str, code: int
) -> None:
    counted: list[tuple[str, int]] = []
    async with gate_to(failing(2, code), counted) as client:
        assert (await client.request(method, "/x")).status_code == code
    assert counted == [(method, code)]


@pytest.mark.parametrize(("method", "attempts"), [("GET", ATTEMPTS), ("POST", 1)])
async def test_no_answer_is_counted_as_none(method: str, attempts: int) -> None:
    counted: list[tuple[str, int]] = []
    async with gate_to(failing(9, 0), counted) as client:
        with pytest.raises(httpx2.TransportError):
            await client.request(method, "/x")
    assert counted == [(method, 0)] * attempts
