"""Replicas that die, refuse, fill up or leave."""

import asyncio

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, generate, idle
from small_replica import Replica, replica_process, serving

from fastgen_api.names import Header, Metric
from fastgen_balancer.endpoint_files import write_endpoints
from fastgen_balancer.endpoints import parse_static

from .conftest import Balance


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_crash_before_the_first_token_is_tried_once_elsewhere(
    balance: Balance, http: httpx2.AsyncClient, protocol: str
) -> None:
    other = Replica("other")
    other.owed = 1_000_000
    async with (
        replica_process("one") as (a, _),
        serving(other) as b,
        balance(a, b) as balancer,
    ):
        await asyncio.sleep(0.6)
        if protocol == "http":
            response = await complete(http, balancer, "poison", 2)
            assert response.headers[Header.REPLICA] == "other"
            assert response.text.endswith("data: [DONE]\n\n")
        else:
            assert await generate(balancer, "poison", 2) == ["w0 ", "w1 "]
        assert len(other.seen) == 1
        await balancer.eventually(lambda: balancer.metric(Metric.RETRIES))
        assert await balancer.metric(Metric.RETRIES) == 1
        assert await balancer.metric(Metric.REQUESTS) == 0
        await balancer.eventually(lambda: idle(balancer))
        # The dead one leaves the picks, and the next requests need no retry.
        await balancer.eventually(lambda: _endpoints(balancer, 1))
        for _ in range(4):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "other"
        assert await balancer.metric(Metric.RETRIES) == 1


async def _endpoints(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.ENDPOINTS) == number


async def test_a_crash_is_repeated_on_one_other_replica_only(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    async with (
        replica_process("one") as (a, first),
        replica_process("two") as (b, second),
        replica_process("three") as (c, third),
        balance(a, b, c) as balancer,
    ):
        response = await complete(http, balancer, "poison", 2)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "unavailable"
        await balancer.eventually(lambda: balancer.metric(Metric.REQUESTS, outcome="error"))
        await asyncio.sleep(0.3)
        assert [p.returncode for p in (first, second, third)].count(None) == 1


async def test_full_replicas_are_tried_elsewhere(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    one.refuse, two.owed = True, 1_000_000
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        await asyncio.sleep(0.6)
        response = await complete(http, balancer, "", 2)
        assert response.headers[Header.REPLICA] == "two"
        assert len(await generate(balancer, "", 2)) == 2
        assert len(one.seen) == 2
        assert len(two.seen) == 2
        two.refuse = True
        assert (await complete(http, balancer, "", 2)).status_code == 429
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "", 2)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await balancer.eventually(lambda: _refused(balancer, 2))
        assert await balancer.metric(Metric.RETRIES) == 4
        assert await balancer.metric(Metric.REQUESTS) == 2


async def _refused(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.REQUESTS, outcome="refused") == number


async def test_a_broken_stream_shows(balance: Balance, http: httpx2.AsyncClient) -> None:
    async with replica_process("one") as (a, process), balance(a) as balancer:
        words: list[str] = []

        async def read_http() -> None:
            body = {"prompt": "gap=0.1", "max_tokens": 100}
            async with http.stream("POST", f"{balancer.url}/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    words.append(line)  # noqa: PERF401 - a list of what came before the error

        streams = (read_http(), generate(balancer, "gap=0.1", 100))
        reading = asyncio.gather(*streams, return_exceptions=True)
        await asyncio.sleep(1.5)
        process.kill()
        http_error, grpc_error = await reading
        assert isinstance(http_error, httpx2.RemoteProtocolError)
        assert len(words) > 5
        assert "data: [DONE]" not in words
        assert isinstance(grpc_error, grpc.aio.AioRpcError)
        assert grpc_error.code() is not grpc.StatusCode.OK
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS, outcome="error") == 2
        assert await balancer.metric(Metric.RETRIES) == 0


async def test_an_engine_that_dies_under_a_stream_is_an_error(balance: Balance) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "break=3", 10)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        await balancer.eventually(lambda: balancer.metric(Metric.REQUESTS, outcome="error"))
        assert await balancer.metric(Metric.REQUESTS) == 1
        assert await balancer.metric(Metric.RETRIES) == 0


async def test_clients_that_leave_are_taken_off_the_books(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        for prompt in ("first=20", "gap=0.1"):
            for call in (complete(http, balancer, prompt, 200), generate(balancer, prompt, 200)):
                task = asyncio.create_task(call)
                await balancer.eventually(lambda: one.running or len(one.seen))
                await asyncio.sleep(0.3)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS) == 0
        await balancer.eventually(lambda: one.running == 0)


async def test_a_full_replica_makes_requests_wait(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one", capacity=1)
    arguments = ("--max-queued-requests", "2", "--max-wait-seconds", "20")
    async with serving(one) as a, balance(a, arguments=arguments) as balancer:
        await asyncio.sleep(0.6)
        running = asyncio.create_task(complete(http, balancer, "gap=0.1", 25))
        await balancer.eventually(lambda: one.running == 1)
        held = asyncio.create_task(complete(http, balancer, "", 1))
        await balancer.eventually(lambda: _queued(balancer, 1))
        later = asyncio.create_task(generate(balancer, "", 1))
        await balancer.eventually(lambda: _queued(balancer, 2))

        refused = await complete(http, balancer, "", 1)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "", 1)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "full" in (failure.value.details() or "")
        assert await _refused(balancer, 2)

        assert (await held).status_code == 200
        assert await later == ["w0 "]
        await running
        # Whose turn it is depends on how long the oldest has waited by then.
        by_grpc, by_http = sorted(one.seen[1:], key=lambda seen: "grpc" not in seen["user-agent"])
        assert by_grpc["user-agent"].startswith("grpc")
        assert int(by_http[Header.WAITED]) > 500, "longer than Envoy waits for a hung picker"
        assert "prompt" not in by_http
        assert await _queued(balancer, 0)
        await balancer.eventually(lambda: idle(balancer))


async def _queued(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.QUEUED_REQUESTS) == number


async def test_patience_in_the_queue_ends(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one", capacity=1)
    one.extra_load = 1
    async with serving(one) as a, balance(a, arguments=("--max-wait-seconds", "1.5")) as balancer:
        await asyncio.sleep(0.6)
        response = await complete(http, balancer, "", 1)
        assert response.status_code == 429
        assert response.elapsed.total_seconds() >= 1.5
        leaver = asyncio.create_task(complete(http, balancer, "", 1))
        await balancer.eventually(lambda: _queued(balancer, 1))
        leaver.cancel()
        await balancer.eventually(lambda: _queued(balancer, 0))
        assert await balancer.metric(Metric.REQUESTS, outcome="excluded") == 1
        assert not one.seen


async def test_a_draining_replica_gets_nothing_new(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        one.draining = True
        await balancer.eventually(lambda: _endpoints(balancer, 1))
        for _ in range(6):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "two"
        two.draining = True
        await balancer.eventually(lambda: _endpoints(balancer, 0))
        refused = await complete(http, balancer, "", 1)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "no_ready_replica"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "", 1)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await _refused(balancer, 2)


async def test_a_silent_replica_is_left_out_until_it_speaks(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        one.silent = True
        await balancer.eventually(lambda: _endpoints(balancer, 1))
        assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "two"
        one.silent = False
        await balancer.eventually(lambda: _endpoints(balancer, 2))


async def test_the_queue_ends_with_the_last_replica(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one", capacity=1)
    one.extra_load = 1
    async with serving(one) as a, balance(a) as balancer:
        await asyncio.sleep(0.6)
        held = asyncio.create_task(complete(http, balancer, "", 1))
        await balancer.eventually(lambda: _queued(balancer, 1))
        one.draining = True
        await balancer.eventually(lambda: _endpoints(balancer, 0))
        late = await complete(http, balancer, "", 1)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "no_ready_replica")
        assert late.elapsed.total_seconds() < 1
        response = await asyncio.wait_for(held, 5)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_ready_replica")
        assert await _refused(balancer, 2)


async def test_an_endpoint_that_leaves_keeps_its_streams(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Envoy alone, so that nothing but its endpoint files decides."""
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a) as balancer:
        balancer.picker.kill()
        await balancer.picker.wait()
        streams = asyncio.gather(
            complete(http, balancer, "gap=0.1", 40), generate(balancer, "gap=0.1", 40)
        )
        await balancer.eventually(lambda: one.running == 2)
        leaving = parse_static(a)
        terminating = type(leaving)(
            leaving.name, leaving.host, leaving.http_port, leaving.grpc_port, terminating=True
        )
        write_endpoints(balancer.directory, "static", (terminating, parse_static(b)))
        await asyncio.sleep(0.5)
        for _ in range(6):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "two"
        write_endpoints(balancer.directory, "static", (parse_static(b),))
        http_answer, grpc_answer = await streams
        assert http_answer.text.endswith("data: [DONE]\n\n")
        assert len(grpc_answer) == 40
