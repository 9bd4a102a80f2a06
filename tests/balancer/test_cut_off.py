"""A replica whose packets are dropped: nobody refuses, nobody answers."""

import asyncio
import time

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, generate, idle
from cut_off import machine
from small_replica import Replica, replica_process, serving

from fastgen_api.names import Header, Metric

from .conftest import Balance


async def _endpoints(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.ENDPOINTS) == number


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_replica_that_is_cut_off_is_out_in_three_seconds_and_hurts_no_other_request(
    balance: Balance, http: httpx2.AsyncClient, protocol: str
) -> None:
    """What waits there for its first byte begins anew elsewhere; what streams elsewhere goes on."""
    other = Replica("other")
    other.owed = 1_000_000
    with machine() as there:
        async with (
            replica_process("cut", host=there.host, within=there.within) as (a, _),
            serving(other) as b,
            balance(a, b) as balancer,
        ):
            await asyncio.sleep(0.6)

            async def ask(prompt: str, number: int = 2) -> None:
                if protocol == "http":
                    answer = await complete(http, balancer, prompt, number)
                    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
                else:
                    assert len(await generate(balancer, prompt, number)) == number

            waiting = [asyncio.create_task(ask(f"first=2 {i}")) for i in range(3)]
            await asyncio.sleep(0.5)
            assert not other.seen, "all three are there"
            other.owed = 0
            await asyncio.sleep(0.3)
            streams = [asyncio.create_task(ask(f"gap=0.1 {i}", 40)) for i in range(4)]
            await balancer.eventually(lambda: other.running >= 2, seconds=5)
            there.cut()
            began = time.monotonic()
            try:
                early = [asyncio.create_task(ask(f"early {i}")) for i in range(4)]
                await balancer.eventually(lambda: _endpoints(balancer, 1), seconds=3)
                assert time.monotonic() - began < 3
                for i in range(5):
                    asked = time.monotonic()
                    await ask(f"later {i}")
                    assert time.monotonic() - asked < 1
                # Those that had no byte yet, sent before the cut or before it was noticed.
                await asyncio.wait_for(asyncio.gather(*waiting, *early), 10)
                ended = await asyncio.gather(*streams, return_exceptions=True)
                broken = [each for each in ended if each is not None]
                assert len(broken) < len(streams), "those that stream elsewhere are not touched"
                for each in broken:
                    assert isinstance(each, httpx2.RemoteProtocolError | grpc.aio.AioRpcError)
            finally:
                there.mend()
            await balancer.eventually(lambda: idle(balancer))
            assert await balancer.metric(Metric.REQUESTS, outcome="error") == len(broken)
            assert await balancer.metric(Metric.REQUESTS, outcome="refused") == 0

            async def is_back() -> bool:
                return (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "cut"

            await balancer.eventually(is_back, seconds=30)
