"""A request's way through the real Envoy and the picker."""

import asyncio
import contextlib
import json
import signal

import grpc
import httpx2
import pytest
from balancer_process import complete, generate, idle, prompt_of, ready
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from small_replica import Replica, serving

from fastgen_api.names import BALANCER_HEALTH_PATH, Header, Metric
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance


async def test_a_streamed_answer_over_http_and_grpc(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        body = {"prompt": "gap=0.01", "max_tokens": 5, "stream": True}
        async with http.stream("POST", f"{balancer.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) == 6
        assert await generate(balancer, "gap=0.01", 4) == ["w0 ", "w1 ", "w2 ", "w3 "]

        assert len(one.seen) + len(two.seen) == 2
        assert await balancer.metric(Metric.PICKS, result="picked") == 2
        assert await balancer.metric("fastgen_balancer_time_to_first_byte_seconds_count") == 2
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS) == 0, "the replica counts what it completed"


async def test_the_less_loaded_replica_is_picked(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    one.owed = 100_000
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        await asyncio.sleep(0.6)
        for _ in range(8):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "two"
        one.owed, two.owed = 0, 100_000
        await asyncio.sleep(0.6)
        for _ in range(8):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "one"


async def test_headers_are_ours(balance: Balance, http: httpx2.AsyncClient) -> None:
    one, other = Replica("one"), Replica("other")
    async with serving(one) as a, serving(other) as b, balance(a) as balancer:
        lies = {
            Header.ENDPOINT: b.rpartition(":")[0],
            Header.WAITED: "77777",
            "x-envoy-upstream-rq-timeout-ms": "1",
            Header.REQUEST_ID: "mine-1",
        }
        response = await complete(http, balancer, "first=0.2", 2, headers=lies)
        assert response.status_code == 200
        assert response.headers[Header.REQUEST_ID] == "mine-1"
        assert one.seen[0][Header.REQUEST_ID] == "mine-1"
        assert int(one.seen[0][Header.WAITED]) < 1000
        assert one.seen[0][Header.ENDPOINT] == a.rpartition(":")[0]
        assert "x-envoy-upstream-rq-timeout-ms" not in one.seen[0]
        made = await complete(http, balancer, "", 1)
        assert len(made.headers[Header.REQUEST_ID]) == 36

        balancer.picker.kill()
        await balancer.picker.wait()
        response = await complete(http, balancer, "", 1, headers=lies)
        assert response.headers[Header.REPLICA] == "one"
        assert Header.WAITED not in one.seen[-1]
        assert Header.ENDPOINT not in one.seen[-1]
        assert not other.seen


async def test_other_requests_need_no_engine(balance: Balance, http: httpx2.AsyncClient) -> None:
    """Listing models, reflection and health pass a full replica; unknown paths pass nothing."""
    one = Replica("one", capacity=1)
    one.extra_load = 1
    async with serving(one) as a, balance(a) as balancer:
        await asyncio.sleep(0.6)
        assert (await http.get(f"{balancer.url}/v1/models")).status_code == 200
        channel = await asyncio.to_thread(grpc.insecure_channel, f"127.0.0.1:{balancer.port}")
        with channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = await asyncio.to_thread(database.get_services)
        assert "fastgen.v1.InferenceService" in services
        missing = await http.get(f"{balancer.url}/metrics")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "not_found"
        assert (await http.get(f"{balancer.url}{BALANCER_HEALTH_PATH}")).status_code == 200


async def test_a_body_over_the_limit(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        large = await complete(http, balancer, "x" * 7_000_000, 1)
        assert large.status_code == 200
        too_large = await complete(http, balancer, "x" * 9_000_000, 1)
        assert too_large.status_code == 413
        assert too_large.json()["error"]["code"] == "payload_too_large"
        assert too_large.headers["content-type"] == "application/json"
        # Envoy answers before it has read the whole body; a client that is still sending may see
        # the connection's end in place of the answer.
        with contextlib.suppress(httpx2.ReadError, httpx2.WriteError):
            far_too_large = await complete(http, balancer, "x" * 30_000_000, 1)
            assert far_too_large.status_code == 413
            assert far_too_large.json()["error"]["code"] == "payload_too_large"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "x" * 9_000_000, 1)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(balancer, "x" * 30_000_000, 1)
        assert len(one.seen) == 1

        async def all_excluded() -> bool:
            return await balancer.metric(Metric.REQUESTS, outcome="excluded") == 4

        await balancer.eventually(all_excluded)
        assert await balancer.metric(Metric.REQUESTS) == 4


async def test_many_streams_at_once(balance: Balance, http: httpx2.AsyncClient) -> None:
    one, two = Replica("one", capacity=200), Replica("two", capacity=200)
    async with (
        serving(one) as a,
        serving(two) as b,
        balance(a, b) as balancer,
        grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def one_stream() -> int:
            return len([m async for m in stub.Generate(prompt_of("gap=0.1", 10))])

        assert await asyncio.gather(*(one_stream() for _ in range(150))) == [10] * 150
        assert 50 <= len(one.seen) <= 100, "divided among the two"
        await balancer.eventually(lambda: idle(balancer))


async def test_the_picker_may_die_and_come_back(balance: Balance, http: httpx2.AsyncClient) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        stream = asyncio.create_task(generate(balancer, "gap=0.1", 150))
        await asyncio.sleep(0.5)
        balancer.picker.send_signal(signal.SIGKILL)
        await balancer.picker.wait()
        assert (await complete(http, balancer, "", 3)).text.endswith("data: [DONE]\n\n")
        assert len(await generate(balancer, "", 3)) == 3
        await balancer.start_picker()
        await balancer.eventually(lambda: ready(balancer), seconds=60)

        async def picks() -> bool:
            await complete(http, balancer, "", 1)
            return await balancer.metric(Metric.PICKS, result="picked") > 0

        await balancer.eventually(picks)
        assert len(await stream) == 150, "its stream was not broken"


async def test_a_hung_picker_delays_but_does_not_stop(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        balancer.picker.send_signal(signal.SIGSTOP)
        try:
            response = await complete(http, balancer, "", 2)
        finally:
            balancer.picker.send_signal(signal.SIGCONT)
        assert response.status_code == 200
        assert response.elapsed.total_seconds() < 4


async def test_what_envoy_sends_by_itself_is_not_counted_twice(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    one = Replica("one")
    one.refuse = True
    async with serving(one) as a, balance(a) as balancer:
        balancer.picker.send_signal(signal.SIGSTOP)
        try:
            assert (await complete(http, balancer, "", 1)).status_code == 429
        finally:
            balancer.picker.send_signal(signal.SIGCONT)
        assert Header.WAITED not in one.seen[0], "so the replica counts it"

        async def picks() -> bool:
            await complete(http, balancer, "", 1)
            return await balancer.metric(Metric.PICKS, result="picked") > 0

        await balancer.eventually(picks)
        await asyncio.sleep(1)
        picked = await balancer.metric(Metric.PICKS, result="picked")
        assert await balancer.metric(Metric.REQUESTS, outcome="refused") == picked
        assert await balancer.metric(Metric.REQUESTS) == picked


async def test_the_log_tells_no_prompt(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one")
    one.refuse = True
    async with serving(one) as a, balance(a, arguments=("--log-level", "debug")) as balancer:
        response = await complete(http, balancer, "a secret prompt", 1)
        assert response.status_code == 429
        await balancer.eventually(lambda: b"outcome" in balancer.logs[0].read_bytes())
        text = balancer.logs[0].read_text()
        assert "secret" not in text
        assert {json.loads(line)["level"] for line in text.splitlines()} >= {"info"}
