"""Long requests that wait: how much memory they may take, and where."""

import asyncio
from pathlib import Path

import httpx2
from balancer_process import Balancer, complete, idle
from small_replica import Replica, serving

from fastgen_api.names import Metric
from fastgen_balancer.dispatch import MAX_HELD_BYTES

from .conftest import Balance

BODY_BYTES = 8_000_000
FIT = MAX_HELD_BYTES // BODY_BYTES


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


async def test_long_requests_wait_within_a_bound_and_not_in_the_picker(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Beyond it they are told when to come again; short ones wait still."""
    one = Replica("one", capacity=1)
    one.extra_load = 1
    frame = b'{"max_tokens": 1, "prompt": "%s"}'
    body = frame % (b"x" * (BODY_BYTES - len(frame) + 2))
    http.timeout = httpx2.Timeout(120)
    arguments = ("--max-wait-seconds", "120")
    async with serving(one) as a, balance(a, arguments=arguments) as balancer:
        await asyncio.sleep(0.6)
        assert balancer.picker is not None
        before = resident_bytes(balancer.picker.pid)
        url = f"{balancer.url}/v1/completions"
        waiting = []
        for number in range(1, FIT + 1):
            # One after the other: Envoy waits for the picker for no more than a second.
            waiting.append(asyncio.create_task(http.post(url, content=body)))
            await balancer.eventually(lambda: _queued(balancer, number))  # noqa: B023
        assert resident_bytes(balancer.picker.pid) - before < MAX_HELD_BYTES / 3
        refused = await http.post(url, content=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        short = asyncio.create_task(complete(http, balancer, "short", 1))
        await balancer.eventually(lambda: _queued(balancer, FIT + 1))
        for each in waiting:
            each.cancel()
        await balancer.eventually(lambda: _queued(balancer, 1))
        again = asyncio.create_task(http.post(url, content=body))
        await balancer.eventually(lambda: _queued(balancer, 2))
        one.extra_load = 0
        assert (await short).status_code == (await again).status_code == 200
        await balancer.eventually(lambda: idle(balancer))


async def _queued(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.QUEUED_REQUESTS) == number
