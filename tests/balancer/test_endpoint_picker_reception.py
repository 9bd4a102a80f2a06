"""Gateways' requests are received as those of our own Envoy: quarantine, homes, deadlines."""

import asyncio
import contextlib
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import complete as own_complete
from balancer_process import idle
from gateway import complete, generate, http_address, running
from gateway_config import Gateway
from small_replica import Replica, replica_process, serving

from fastgen_api.names import Header, Metric

from .conftest import Balance, picking


async def test_a_poison_prompt_is_refused_to_gateways_too(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Over HTTP and over gRPC; two replicas die of it, and no third."""
    async with contextlib.AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(replica_process(f"r{i}")) for i in range(4)]
        balancer, port = await stack.enter_async_context(
            picking(balance, *(address for address, _ in pairs))
        )
        pool = [http_address(address) for address, _ in pairs]
        gateway = await stack.enter_async_context(running(Gateway(port, addresses=pool), tmp_path))
        await asyncio.sleep(0.6)

        async def is_convicted() -> bool:
            answer = await complete(http, gateway, "some poison", 2)
            assert answer.status_code in (503, 422), answer.text
            return answer.status_code == 422

        await balancer.eventually(is_convicted)
        answer = await complete(http, gateway, "some poison", 9)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "prompt_quarantined")
        assert int(answer.headers["retry-after"]) > 30
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(gateway, "some poison", 2)
        assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        own = await own_complete(http, balancer, "some poison", 1)
        assert own.status_code == 422, "whichever way it comes"
        assert (await complete(http, gateway, "good")).status_code == 200
        assert sum(process.returncode is None for _, process in pairs) == 2
        assert await balancer.metric(Metric.PICKS, result="quarantined") >= 3
        await balancer.eventually(lambda: idle(balancer))


async def test_a_prompt_has_one_home_whichever_way_it_comes(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    fleet = [Replica(name) for name in ("one", "two", "three", "four")]
    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(each)) for each in fleet]
        balancer, port = await stack.enter_async_context(picking(balance, *addresses))
        pool = [http_address(address) for address in addresses]
        gateway = await stack.enter_async_context(running(Gateway(port, addresses=pool), tmp_path))
        await asyncio.sleep(0.6)
        homes = set()
        for i in range(12):
            opening = f"document {i} ".ljust(512, "x")
            # A home that still has what came before may be passed over.
            await balancer.eventually(lambda: idle(balancer))
            by_gateway = await complete(http, gateway, f"{opening} first question")
            await balancer.eventually(lambda: idle(balancer))
            by_us = await own_complete(http, balancer, f"{opening} second question", 1)
            home = by_gateway.headers[Header.REPLICA]
            assert by_us.headers[Header.REPLICA] == home, opening[:12]
            homes.add(home)
        assert len(homes) > 1, "not all at one replica"


@pytest.mark.parametrize("body_mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_client_waits_no_longer_than_it_said(
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
        patient = asyncio.create_task(complete(http, gateway))
        await balancer.eventually(lambda: balancer.metric(Metric.QUEUED_REQUESTS))
        answer = await complete(http, gateway, headers={"x-request-timeout": "0.8"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert 0.7 < answer.elapsed.total_seconds() < 2
        await asyncio.sleep(1)
        # The queue has stood for longer than that: nobody who is in such a hurry would be served.
        late = await complete(http, gateway, headers={"x-request-timeout": "1"})
        assert (late.status_code, late.json()["error"]["code"]) == (429, "deadline_too_short")
        assert late.elapsed.total_seconds() < 0.5
        assert not patient.done()
        one.extra_load = 0
        assert (await patient).status_code == 200
        assert len(one.seen) == 1
