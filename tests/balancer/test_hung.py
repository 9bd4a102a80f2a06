"""A replica that hangs: it takes connections and bytes, and answers nothing any more."""

import asyncio
import signal
import time

import httpx2
import pytest
from balancer_process import Balancer, complete, generate, idle
from small_replica import Replica, replica_process, serving

from fastgen_api.names import Header, Metric

from .conftest import Balance


async def _endpoints(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.ENDPOINTS) == number


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_hung_replica_is_left_out_and_hurts_nobody(
    balance: Balance, http: httpx2.AsyncClient, protocol: str
) -> None:
    """Out in three seconds; others are served at once, and who waits there when it is killed."""
    other = Replica("other")
    other.owed = 1_000_000
    async with (
        replica_process("hung") as (a, process),
        serving(other) as b,
        balance(a, b) as balancer,
    ):
        await asyncio.sleep(0.6)

        async def ask(prompt: str) -> None:
            if protocol == "http":
                answer = await complete(http, balancer, prompt, 2)
                assert answer.text.endswith("data: [DONE]\n\n"), answer.text
            else:
                assert await generate(balancer, prompt, 2) == ["w0 ", "w1 "]

        waiting = [asyncio.create_task(ask(f"first=0.6 {i}")) for i in range(3)]
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            assert not other.seen, "all three are there"
            other.owed = 0
            await balancer.eventually(lambda: _endpoints(balancer, 1), seconds=3)
            assert time.monotonic() - began < 3
            for _ in range(5):
                asked = time.monotonic()
                await ask("")
                assert time.monotonic() - asked < 1
            assert len(other.seen) == 5
        finally:
            process.kill()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert len(other.seen) == 8
        await balancer.eventually(lambda: idle(balancer))
        assert await balancer.metric(Metric.REQUESTS) == 0, "nobody has noticed"
        assert await balancer.metric(Metric.RETRIES) == 3


async def test_a_replica_that_goes_on_is_picked_again(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    async with (
        replica_process("hung") as (a, process),
        serving(Replica("other")) as b,
        balance(a, b) as balancer,
    ):
        await asyncio.sleep(0.6)
        process.send_signal(signal.SIGSTOP)
        await balancer.eventually(lambda: _endpoints(balancer, 1), seconds=3)
        process.send_signal(signal.SIGCONT)
        await balancer.eventually(lambda: _endpoints(balancer, 2))


async def test_a_long_prefill_is_no_hang(balance: Balance, http: httpx2.AsyncClient) -> None:
    """Nothing cuts a request whose first byte takes long on a replica that lives."""
    async with serving(Replica("one")) as a, balance(a) as balancer:
        answer = await complete(http, balancer, "first=12", 2)
        assert answer.headers[Header.REPLICA] == "one"
        assert await balancer.metric(Metric.RETRIES) == 0


async def test_a_slow_replica_is_left_out_until_it_is_quick(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """By its first bytes alone: it tells its load in time, and answers everything."""
    replicas = [Replica(name) for name in ("one", "two", "slow")]
    slow = replicas[2]
    # Also of a busy machine, where the others take half a second.
    slow.lag = 6.0
    async with (
        serving(replicas[0]) as a,
        serving(replicas[1]) as b,
        serving(slow) as c,
        balance(a, b, c) as balancer,
    ):
        await asyncio.sleep(0.6)
        prompts = (complete(http, balancer, f"number {i}", 1) for i in range(45))
        answers = await asyncio.gather(*prompts)
        assert {answer.status_code for answer in answers} == {200}
        await balancer.eventually(lambda: balancer.metric(Metric.EJECTIONS, reason="slow"))
        seen = len(slow.seen)
        assert await _endpoints(balancer, 2)
        for i in range(8):
            await complete(http, balancer, f"later {i}", 1)
        assert len(slow.seen) == seen
        slow.lag = 0.0

        async def is_back() -> bool:
            await asyncio.gather(*(complete(http, balancer, f"again {i}", 1) for i in range(6)))
            return await _endpoints(balancer, 3) and len(slow.seen) > seen + 1

        await balancer.eventually(is_back)
        assert await balancer.metric(Metric.EJECTIONS, reason="failing") == 0
