"""A hundred open streams, and what operations do to them: none breaks.

A stream is broken when it would have ended within `drainSeconds` and did not. Each takes its turn
of tokens, ends, and the next one begins, so that a hundred are open all the time.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cluster_access import NAMESPACE, Kubernetes, wait_until
from traffic import Traffic, run_traffic

from fastgen_devcluster.demo.endpoint import open_url
from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]

NAME = "crowd"
STREAMS = 100
TOKENS = 32
SETTLED_SECONDS = 300.0


@pytest.fixture(scope="module")
def crowd(installation: Kubernetes, example: dict[str, Any]) -> Iterator[Kubernetes]:
    """Two replicas with room for all streams each, and two balancer pods."""
    manifest = json.loads(json.dumps(example)) | {"metadata": {"name": NAME}}
    spec = manifest["spec"]
    spec["model"]["servedName"] = NAME
    spec["engine"] |= {"maxConcurrentRequests": STREAMS, "maxModelLength": 256}
    spec["engine"]["tokenBudget"] = {"mode": "Fixed", "maxTokens": 128}
    spec["scaling"] = {"mode": "Disabled"}
    spec["replicas"] = 2
    spec["rollout"] |= {"drainSeconds": 120}
    spec["resources"]["limits"]["cpu"] = "1"
    installation.apply(manifest)
    wait_until("two replicas", lambda: installation.is_settled(NAME, 2), seconds=SETTLED_SECONDS)
    yield installation
    installation.kubectl("delete", "-n", NAMESPACE, "fgd", NAME, "--wait", "--cascade=foreground")


@pytest.fixture(scope="module")
def crowd_url(crowd: Kubernetes) -> Iterator[str]:
    with open_url(crowd.cluster, NAME, NAMESPACE) as base:
        yield f"{base}/v1"


@asynccontextmanager
async def all_streams_open(url: str) -> AsyncIterator[Traffic]:
    """Begins once a hundred streams have had their first token; ends when all have ended."""
    async with run_traffic(url, NAME, streams=STREAMS, max_tokens=TOKENS) as traffic:
        await until("every stream began", lambda: open_streams(traffic) >= 0.9 * STREAMS, 120)
        yield traffic
    print(f"{len(traffic.answers)} streams, {len(traffic.failed)} failed")


def open_streams(traffic: Traffic) -> int:
    return sum(answer.started and not answer.finished for answer in traffic.answers)


async def until(what: str, holds: Callable[[], Any], seconds: float) -> None:
    await asyncio.to_thread(wait_until, what, holds, seconds)


def uids(kubernetes: Kubernetes, component: str) -> set[str]:
    """Pods of a component, those on their way out too."""
    selector = f"fastgen.dev/deployment={NAME},app.kubernetes.io/component={component}"
    return {pod["metadata"]["uid"] for pod in kubernetes.get("pods", "-l", selector)["items"]}


def replaced(kubernetes: Kubernetes, component: str, before: set[str], count: int) -> bool:
    after = uids(kubernetes, component)
    return len(after) == count and not after & before and kubernetes.is_settled(NAME, 2)


async def roll_the_replicas(kubernetes: Kubernetes) -> None:
    before = uids(kubernetes, "replica")
    length = 257 + int(time.time()) % 200
    kubernetes.patch(NAME, {"engine": {"maxModelLength": length}})
    await until("new replicas", lambda: replaced(kubernetes, "replica", before, 2), SETTLED_SECONDS)


async def scale_down_and_up(kubernetes: Kubernetes) -> None:
    for count in (1, 2):
        kubernetes.kubectl("scale", "-n", NAMESPACE, "fgd", NAME, f"--replicas={count}")
        await until(
            f"{count} replicas",
            lambda wanted=count: kubernetes.is_settled(NAME, wanted),
            SETTLED_SECONDS,
        )


async def restart_the_balancers(kubernetes: Kubernetes) -> None:
    before = uids(kubernetes, "balancer")
    kubernetes.kubectl("rollout", "restart", "-n", NAMESPACE, f"deployment/{NAME}-balancer")
    await until(
        "new balancers", lambda: replaced(kubernetes, "balancer", before, 2), SETTLED_SECONDS
    )


async def drain_a_node(kubernetes: Kubernetes) -> None:
    """As before maintenance: every pod of ours leaves, and finds room elsewhere."""
    node = kubernetes.replicas(NAME)[0]["spec"]["nodeName"]
    selector = f"fastgen.dev/deployment={NAME}"
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=280s")
    try:
        await asyncio.to_thread(
            kubernetes.kubectl, "drain", node, *flags, f"--pod-selector={selector}"
        )
        await until("settled", lambda: kubernetes.is_settled(NAME, 2), SETTLED_SECONDS)
        nodes = {pod["spec"]["nodeName"] for pod in kubernetes.replicas(NAME)}
        assert node not in nodes
    finally:
        kubernetes.kubectl("uncordon", node)


async def upgrade_the_operator(kubernetes: Kubernetes) -> None:
    before = uids(kubernetes, "replica") | uids(kubernetes, "balancer")
    operator = ("-n", SYSTEM_NAMESPACE, "deployment/fastgen")
    kubernetes.kubectl("set", "env", *operator, f"FASTGEN_RUNTIME_IMAGE=none:{time.time():.0f}")
    await asyncio.to_thread(kubernetes.kubectl, "rollout", "status", *operator, "--timeout=120s")
    await until("UpgradeAvailable", lambda: kubernetes.condition(NAME, "UpgradeAvailable"), 60)
    assert before == uids(kubernetes, "replica") | uids(kubernetes, "balancer")


@pytest.mark.parametrize(
    "event",
    [
        roll_the_replicas,
        scale_down_and_up,
        restart_the_balancers,
        drain_a_node,
        upgrade_the_operator,
    ],
    ids=lambda event: event.__name__,
)
async def test_no_stream_breaks(
    crowd: Kubernetes, crowd_url: str, event: Callable[[Kubernetes], Awaitable[None]]
) -> None:
    async with all_streams_open(crowd_url) as traffic:
        await event(crowd)
        assert open_streams(traffic) > 0
    assert traffic.broken == []
    assert [answer for answer in traffic.failed if not answer.started] == []
