"""The time that Envoy gives an upload, while the picker holds a request."""

import asyncio
import json
from pathlib import Path

import httpx2
from balancer_process import Balancer, complete, generate, ready, stop
from small_replica import Replica, serving

from fastgen_api.names import Metric
from fastgen_balancer.endpoint_files import ENVOY_FILE

from .conftest import Balance


def set_upload_seconds(path: Path, seconds: int) -> None:
    config = json.loads(path.read_text())
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    chain["filters"][0]["typed_config"]["request_timeout"] = f"{seconds}s"
    path.write_text(json.dumps(config))


async def with_upload_seconds(balancer: Balancer, seconds: int) -> None:
    """Starts Envoy anew, where a request has so long to come in whole."""
    set_upload_seconds(balancer.directory / ENVOY_FILE, seconds)
    await stop(balancer.envoy)
    await balancer.start_envoy()
    await balancer.eventually(lambda: ready(balancer), seconds=60)


async def holds(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.QUEUED_REQUESTS) == number


async def test_the_time_for_an_upload_is_over_when_a_hold_begins(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Else Envoy would answer 408 to what is held for longer than an upload may take."""
    one = Replica("one", capacity=1)
    async with serving(one) as a, balance(a, arguments=("--max-wait-seconds", "20")) as balancer:
        await with_upload_seconds(balancer, 1)
        one.extra_load = 1
        await asyncio.sleep(0.6)
        held = asyncio.create_task(complete(http, balancer, "x" * 200_000, 1))
        await balancer.eventually(lambda: holds(balancer, 1))
        later = asyncio.create_task(generate(balancer, "", 1))
        await balancer.eventually(lambda: holds(balancer, 2))
        await asyncio.sleep(3)
        assert not held.done()
        assert not later.done()
        one.extra_load = 0
        assert (await held).status_code == 200
        assert await later == ["w0 "]
