"""The endpoint-picker protocol, spoken by a second Envoy that is nobody's but the test's."""

import asyncio
import contextlib
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import idle
from gateway import complete, generate, http_address, running
from gateway_config import Gateway
from small_replica import Replica, serving

from fastgen_api.names import Header, Metric

from .conftest import Balance, picking

MANY_BYTES = 300_000
"""More than one piece of a streamed body."""


async def test_bodies_stream_both_ways(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one = Replica("one")
    async with (
        serving(one) as a,
        picking(balance, a) as (balancer, port),
        running(Gateway(port), tmp_path) as gateway,
    ):
        body = {"prompt": "gap=0.2 " + "x" * MANY_BYTES, "max_tokens": 5, "stream": True}
        loop = asyncio.get_running_loop()
        async with http.stream("POST", f"{gateway.url}/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            times = [loop.time() async for line in answer.aiter_lines() if line]
        assert len(times) == 6
        assert times[4] - times[0] > 0.5, "word by word, not all at the end"
        seen = one.seen[-1]
        assert seen["x-gateway-destination-endpoint"] == http_address(a)
        assert Header.WAITED not in seen, "so the replica counts it however it ends"
        assert await generate(gateway, "gap=0.05 " + "x" * MANY_BYTES, 4) == [
            "w0 ", "w1 ", "w2 ", "w3 ",
        ]  # fmt: skip
        assert (await http.get(f"{gateway.url}/v1/models")).status_code == 200
        assert await balancer.metric(Metric.PICKS, result="picked") == 3
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS) == 0, "the replica counts what it completed"


@pytest.mark.parametrize("by_header", [False, True], ids=["metadata", "header"])
async def test_the_less_loaded_replica_is_picked(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path, by_header: bool
) -> None:
    one, two = Replica("one"), Replica("two")
    one.owed = 100_000
    async with serving(one) as a, serving(two) as b, picking(balance, a, b) as (_, port):
        pool = (http_address(a), http_address(b))
        gateway = Gateway(port, addresses=pool, by_header=by_header)
        async with running(gateway, tmp_path):
            await asyncio.sleep(0.6)
            for _ in range(6):
                answer = await complete(http, gateway)
                assert answer.headers[Header.REPLICA] == "two"
                first = two.seen[-1]["x-gateway-destination-endpoint"]
                assert first == f"{http_address(b)},{http_address(a)}"


async def test_the_gateway_retries_on_the_next_of_the_list(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one, two = Replica("one"), Replica("two")
    two.owed, one.refuse = 100_000, True
    async with serving(one) as a, serving(two) as b, picking(balance, a, b) as (balancer, port):
        pool = (http_address(a), http_address(b))
        gateway = Gateway(port, addresses=pool, retries=1)
        async with running(gateway, tmp_path):
            await asyncio.sleep(0.6)
            answer = await complete(http, gateway, "gap=0.5", 4)
            assert (answer.status_code, answer.headers[Header.REPLICA]) == (200, "two")
            assert one.seen, "the first of the list was tried first"
            await balancer.eventually(lambda: idle(balancer))


async def test_only_the_subset_is_picked(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one, two, three = Replica("one"), Replica("two"), Replica("three")
    two.owed = 100_000
    async with (
        serving(one) as a,
        serving(two) as b,
        serving(three) as c,
        picking(balance, a, b, c) as (_, port),
    ):
        await asyncio.sleep(0.6)
        only = Gateway(port, subset=[http_address(b)])
        async with running(only, tmp_path):
            for _ in range(5):
                assert (await complete(http, only)).headers[Header.REPLICA] == "two"
            assert two.seen[-1]["x-gateway-destination-endpoint"] == http_address(b)
        for subset in ([], ["10.9.9.9:8000"]):
            none = Gateway(port, subset=subset)
            async with running(none, tmp_path):
                answer = await complete(http, none)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "no_ready_replica"
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await generate(none, "", 1)
                assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not one.seen
        assert not three.seen


@pytest.mark.parametrize("body_mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_full_replicas_and_no_replicas(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path, body_mode: str
) -> None:
    one = Replica("one", capacity=1)
    one.extra_load = 1
    arguments = ("--max-queued-requests", "1", "--max-wait-seconds", "3")
    async with (
        serving(one) as a,
        picking(balance, a, arguments=arguments) as (balancer, port),
        running(Gateway(port, body_mode=body_mode), tmp_path) as gateway,
    ):
        await asyncio.sleep(0.6)
        held = asyncio.create_task(complete(http, gateway))
        await balancer.eventually(lambda: balancer.metric(Metric.QUEUED_REQUESTS))
        refused = await complete(http, gateway)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(gateway, "", 1)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await asyncio.sleep(1.5)
        assert not held.done(), "longer than the gateway's message timeout"
        one.extra_load = 0
        answer = await held
        assert answer.status_code == 200
        assert int(one.seen[-1][Header.WAITED]) > 1400

        one.draining = True
        await asyncio.sleep(0.6)
        answer = await complete(http, gateway)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_ready_replica")
        assert await balancer.metric(Metric.REQUESTS, outcome="refused") == 3


@pytest.mark.parametrize("body_mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_client_that_leaves_the_queue_is_counted_and_forgotten(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path, body_mode: str
) -> None:
    one = Replica("one", capacity=1)
    one.extra_load = 1
    async with (
        serving(one) as a,
        picking(balance, a) as (balancer, port),
        running(Gateway(port, body_mode=body_mode), tmp_path) as gateway,
    ):
        await asyncio.sleep(0.6)
        held = asyncio.create_task(complete(http, gateway))
        await balancer.eventually(lambda: balancer.metric(Metric.QUEUED_REQUESTS))
        held.cancel()

        async def is_gone() -> bool:
            return await balancer.metric(Metric.QUEUED_REQUESTS) == 0

        await balancer.eventually(is_gone, seconds=5)
        assert await balancer.metric(Metric.REQUESTS, outcome="excluded") == 1
        assert await balancer.metric(Metric.IN_FLIGHT_REQUESTS) == 0
        one.extra_load = 0
        assert (await complete(http, gateway)).status_code == 200
        assert len(one.seen) == 1
        await balancer.eventually(lambda: idle(balancer), seconds=5)
        assert await balancer.metric(Metric.REQUESTS) == 1, "the other one is the replica's"


async def test_a_stream_in_flight_counts_and_its_end_too(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    async with (
        serving(Replica("one")) as a,
        picking(balance, a) as (balancer, port),
        running(Gateway(port), tmp_path) as gateway,
    ):
        streams = [asyncio.create_task(complete(http, gateway, "gap=0.1", 15)) for _ in range(5)]

        async def all_are_on() -> bool:
            return await balancer.metric(Metric.IN_FLIGHT_REQUESTS) == 5

        await balancer.eventually(all_are_on, seconds=5)
        streams[0].cancel()
        for answer in await asyncio.gather(*streams[1:]):
            assert answer.status_code == 200
            assert len([line for line in answer.text.splitlines() if line]) == 16
        await balancer.eventually(lambda: idle(balancer), seconds=5)


async def test_a_replica_that_is_gone_is_not_picked(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    async with serving(Replica("one")) as a, contextlib.AsyncExitStack() as two_lives:
        b = await two_lives.enter_async_context(serving(Replica("two")))
        pool = (http_address(a), http_address(b))
        async with (
            picking(balance, a, b) as (balancer, port),
            running(Gateway(port, addresses=pool, retries=1), tmp_path) as gateway,
        ):
            await two_lives.aclose()
            for i in range(20):
                # One prompt for all would be suspected of the crash, and not tried twice.
                answer = await complete(http, gateway, f"prompt {i}")
                assert answer.status_code == 200, answer.text
                assert answer.headers[Header.REPLICA] == "one"
            await asyncio.sleep(2)

            async def is_left_out() -> bool:
                return await balancer.metric(Metric.ENDPOINTS) == 1

            await balancer.eventually(is_left_out, seconds=10)
            await balancer.eventually(lambda: idle(balancer))


async def test_what_the_gateway_cannot_deliver_is_counted(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as life, contextlib.AsyncExitStack() as rest:
        address = await life.enter_async_context(serving(Replica("one")))
        balancer, port = await rest.enter_async_context(picking(balance, address))
        gateway = Gateway(port, addresses=(http_address(address),))
        await rest.enter_async_context(running(gateway, tmp_path))
        assert (await complete(http, gateway)).status_code == 200
        assert await balancer.metric(Metric.REQUESTS) == 0, "the replica's to count"
        await life.aclose()
        lost = await complete(http, gateway)
        assert lost.status_code == 503
        assert Header.REPLICA not in lost.headers
        assert await balancer.metric(Metric.REQUESTS, outcome="error") == 1
        await balancer.eventually(lambda: idle(balancer), seconds=5)


async def test_a_buffered_body_does_as_well(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one = Replica("one")
    async with serving(one) as a, picking(balance, a) as (_, port):
        for mode in ("BUFFERED", "NONE", "STREAMED"):
            gateway = Gateway(port, body_mode=mode)
            async with running(gateway, tmp_path):
                answer = await complete(http, gateway, "x" * 100_000, 2)
                assert answer.status_code == 200, mode
                assert one.seen[-1]["x-gateway-destination-endpoint"] == http_address(a)
                assert await generate(gateway, "", 1) == ["w0 "], mode


async def test_bad_requests_go_nowhere(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one = Replica("one")
    async with (
        serving(one) as a,
        picking(balance, a) as (balancer, port),
        running(Gateway(port), tmp_path) as gateway,
    ):
        answer = await complete(http, gateway, "x" * 9_000_000)
        assert answer.status_code == 413
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
            call = channel.stream_stream("/fastgen.v1.InferenceService/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                async for _ in call(iter((b"\xff\xff",)), timeout=5):
                    pass
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not one.seen
        await balancer.eventually(lambda: idle(balancer))
