"""Prompts that crash replicas, and two balancers that share those."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import Balancer, balancing, complete, idle, prompt_of, stop

from fastgen_api.names import Metric
from fastgen_api.v1 import inference_pb2_grpc
from fastgen_cli.plan import free_ports

from .test_poison import Processes, alive, replicas


@asynccontextmanager
async def two_balancers(folder: Path, addresses: list[str]) -> AsyncIterator[list[Balancer]]:
    """Two of the same replicas, as two pods of a deployment; each knows the other's port."""
    ports = free_ports(2)
    async with AsyncExitStack() as stack:
        made = []
        for number, (own, other) in enumerate((ports, ports[::-1])):
            (folder / str(number)).mkdir()
            arguments = ("--peers-port", str(own), "--static-peer", f"127.0.0.1:{other}")
            context = balancing(folder / str(number), *addresses, arguments=arguments)
            made.append(await stack.enter_async_context(context))
        await asyncio.sleep(0.6)
        yield made


async def settled(balancers: list[Balancer], processes: Processes) -> int:
    """How many replicas live, once all crashes are noticed."""
    await asyncio.sleep(1.5)
    for balancer in balancers:
        await balancer.eventually(lambda each=balancer: idle(each))
    return alive(processes)


@pytest.mark.parametrize("protocol", ["http", "grpc", "gzip"])
async def test_a_poison_prompt_sent_to_each_pod_in_turn_kills_two_replicas(
    tmp_path: Path, http: httpx2.AsyncClient, protocol: str
) -> None:
    """At once after each failure, by a client that is spread over the pods."""
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 6)
        balancers = await stack.enter_async_context(two_balancers(tmp_path, addresses))

        async def send(balancer: Balancer, number: int) -> None:
            if protocol == "http":
                answer = await complete(http, balancer, "some poison", 1 + number)
                assert answer.status_code in (503, 422)
                return
            how = grpc.Compression.Gzip if protocol == "gzip" else None
            async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                call = stub.Generate(prompt_of("some poison", 1 + number), compression=how)
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await call.read()
            assert failure.value.code() in (
                grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION,
            )  # fmt: skip

        for number in range(20):
            await send(balancers[number % 2], number)
        assert await settled(balancers, processes) == 4
        for balancer in balancers:
            assert await balancer.metric(Metric.QUARANTINED_PROMPTS) == 1
            assert (await complete(http, balancer, "some poison", 1)).status_code == 422
            assert (await complete(http, balancer, "good", 1)).status_code == 200


async def test_a_picker_that_starts_anew_knows_what_the_other_knows(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 4)
        one, two = await stack.enter_async_context(two_balancers(tmp_path, addresses))
        assert (await complete(http, one, "some poison", 1)).status_code == 503
        await one.eventually(lambda: _convicted(one))
        await two.eventually(lambda: _convicted(two), seconds=2)
        await stop(one.picker)
        await one.start_picker()
        await one.eventually(lambda: _answers(one), seconds=60)
        await one.eventually(lambda: _convicted(one), seconds=5)
        assert (await complete(http, one, "some poison", 1)).status_code == 422
        assert alive(processes) == 2


async def test_alone_a_pod_does_as_well_as_ever(tmp_path: Path, http: httpx2.AsyncClient) -> None:
    """With the other one hung, nobody waits for it."""
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 4)
        one, two = await stack.enter_async_context(two_balancers(tmp_path, addresses))
        await stop(two.picker)
        for _ in range(8):
            answer = await complete(http, one, "some poison", 1)
            assert answer.status_code in (503, 422)
            assert answer.elapsed.total_seconds() < 2
        assert await settled([one], processes) == 2
        assert (await complete(http, one, "some poison", 1)).status_code == 422


async def _answers(balancer: Balancer) -> bool:
    try:
        await balancer.metric(Metric.ENDPOINTS)
    except httpx2.HTTPError:
        return False
    return True


async def _convicted(balancer: Balancer) -> bool:
    return await balancer.metric(Metric.QUARANTINED_PROMPTS) == 1
