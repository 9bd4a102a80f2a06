"""Replicas that come, go, hang and drain all the time, under load, and what is left of it."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import watched_picker
from balancer_process import Balancer
from compiled_replica import CompiledReplica, ask, compiled_replicas, flap
from watched_picker import Held, held_by

from fastgen_api.names import Metric

from .conftest import Balance

STREAMS = 20
"""Of each protocol."""
IDLE_SECONDS = 5.0
"""From the end of the last answer to books without a request in flight."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of flapping left, when all was quiet again."""

    done: dict[str, int]
    told: list[dict[str, Any]]
    held: Held

    @property
    def requests(self) -> int:
        return sum(each["all"] for each in self.told)

    @property
    def failed(self) -> int:
        return sum(each["failed"] for each in self.told)


@pytest.mark.parametrize(
    ("rounds", "seconds"),
    [
        pytest.param(3, 7.0, id="short"),
        pytest.param(4, 75.0, id="minutes", marks=pytest.mark.slow),
    ],
)
async def test_flapping_endpoints_leave_nothing_behind(
    balance: Balance, tmp_path: Path, rounds: int, seconds: float
) -> None:
    told_to = tmp_path / "held.json"
    flags = ("-base-seconds=0.02", "-max-concurrent=16")
    async with (
        compiled_replicas(5, *flags) as fleet,
        balance(
            *(replica.address for replica in fleet),
            environment={watched_picker.TELL_TO: str(told_to)},
            picker_program=(sys.executable, watched_picker.__file__),
        ) as balancer,
    ):
        rng = Random(6)
        found = [await _round(balancer, fleet, rng, seconds, told_to) for _ in range(rounds)]
        sound = await _load(balancer, fleet, 2.0, 99)
        assert [each["failed"] for each in sound] == [0, 0], [each["errors"] for each in sound]
        failed = sum(each.failed for each in found)
        # What Envoy sent by itself, while the picker was too slow, is the replica's to count.
        least = failed - await _bypassed(balancer)
        await balancer.eventually(lambda: _has_counted(balancer, least, failed))
        assert await balancer.metric(Metric.QUEUED_REQUESTS) == 0
    for what in ("start", "kill", "hang", "drain"):
        assert sum(each.done[what] for each in found) > 0, f"nothing tested: no {what}"
    assert failed < sum(each.requests for each in found) / 2
    assert "lost from the books" not in "".join(log.read_text() for log in balancer.logs)
    _assert_no_growth(found[0], found[-1], sum(each.requests for each in found[1:]))


def _assert_no_growth(first: Round, last: Round, requests: int) -> None:
    assert last.held.tasks == first.held.tasks
    assert last.held.descriptors <= first.held.descriptors + 10
    # One object left per request would be as many as there were requests.
    assert requests > 500
    assert last.held.objects - first.held.objects < requests / 2
    assert last.held.resident_bytes - first.held.resident_bytes < 16 * 2**20


async def _has_counted(balancer: Balancer, least: int, most: int) -> bool:
    """Whether each request that failed is counted, and once; replicas count the others."""
    return least <= await balancer.metric(Metric.REQUESTS) <= most


async def _bypassed(balancer: Balancer) -> int:
    url = f"http://127.0.0.1:{balancer.admin_port}/stats?filter=failure_mode_allowed"
    async with httpx2.AsyncClient(trust_env=False) as client:
        text = (await client.get(url)).text
    return int(text.rpartition(": ")[2])


async def _round(
    balancer: Balancer, fleet: list[CompiledReplica], rng: Random, seconds: float, told_to: Path
) -> Round:
    load = asyncio.create_task(_load(balancer, fleet, seconds, rng.randrange(2**32)))
    done = await flap(fleet, rng, seconds)
    told = await load

    async def is_idle() -> bool:
        return await balancer.metric(Metric.IN_FLIGHT_REQUESTS) == 0

    async def is_whole() -> bool:
        return await balancer.metric(Metric.ENDPOINTS) == len(fleet)

    # Each client has its answer by now, and Envoy tells of ended requests each second.
    await balancer.eventually(is_idle, IDLE_SECONDS)
    await balancer.eventually(is_whole, 40)
    assert await is_idle()
    assert balancer.picker is not None
    found = Round(done, told, await held_by(balancer.picker, told_to))
    print(
        "ROUND",
        found.done,
        found.requests,
        found.failed,
        [t["errors"] for t in found.told],
        found.held,
    )
    return found


async def _load(
    balancer: Balancer, fleet: list[CompiledReplica], seconds: float, seed: int
) -> list[dict[str, Any]]:
    target = f"127.0.0.1:{balancer.port}"
    clients = [
        ask(fleet[0].program, target, protocol, streams=STREAMS, tokens=10, seconds=seconds,
            warm_up=0, ramp=0.5, seed=seed)
        for protocol in ("grpc", "http")
    ]  # fmt: skip
    return list(await asyncio.gather(*clients))
