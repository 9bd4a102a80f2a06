"""Whoever writes `replicas` of a served model, no open stream breaks: the small model, for real."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from traffic import Traffic, run_traffic

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-scaling-streams"
MANIFEST: dict[str, Any] = {
    "apiVersion": "fastgen.dev/v1alpha1",
    "kind": "FastGenDeployment",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
        "engine": {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 8},
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"memory": "1536Mi"},
        },
        "scaling": {"mode": "Disabled"},
        "balancer": {"replicas": 1},
        "rollout": {"drainSeconds": 60},
    },
}
AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "chat"},
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "fastgen.dev/v1alpha1",
            "kind": "FastGenDeployment",
            "name": "chat",
        },
        # Without a metrics server it raises to its minimum all the same.
        "minReplicas": 2,
        "maxReplicas": 2,
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18086) as operator:
        operator.start()
        apply(operator, None)
        wait_until("one replica serves", lambda: settled(operator, 1), seconds=180)
        yield operator


def apply(operator: OperatorProcess, replicas: int | None, *flags: str) -> None:
    """As a pipeline would, from its repository."""
    declared = {} if replicas is None else {"replicas": replicas}
    manifest = MANIFEST | {"spec": MANIFEST["spec"] | declared}
    operator.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(manifest))


def settled(operator: OperatorProcess, replicas: int) -> bool:
    """Ready with so many replicas, and no other pod left."""
    selector = "fastgen.dev/deployment=chat,app.kubernetes.io/component=replica"
    found = operator.get("fgd", "chat")
    return (
        operator.condition("chat", "Ready").get("status") == "True"
        and found["status"]["observedGeneration"] == found["metadata"]["generation"]
        and found["status"]["readyReplicas"] == replicas
        and len(operator.get("pods", "-l", selector)["items"]) == replicas
    )


async def until(what: str, holds: Callable[[], Any], seconds: float = 120) -> None:
    await asyncio.to_thread(wait_until, what, holds, seconds)


def answered(traffic: Traffic) -> set[str | None]:
    """The replicas that finished a stream."""
    return {answer.replica for answer in traffic.answers if answer.finished}


async def test_no_stream_breaks_whoever_scales(served: OperatorProcess) -> None:
    address = served.get("service", "chat")["spec"]["clusterIP"]
    async with run_traffic(f"http://{address}/v1", "chat", streams=4, max_tokens=24) as traffic:
        await until("a stream ended", lambda: answered(traffic))
        served.kubectl("create", "-f", "-", stdin=json.dumps(AUTOSCALER))
        await until("the autoscaler's two replicas", lambda: settled(served, 2))
        await until("both serve", lambda: len(answered(traffic)) == 2)
        apply(served, None)
        served.kubectl("delete", "hpa", "chat")
        assert settled(served, 2), "a manifest without replicas changes nothing"
        apply(served, 1)
        await until("the manifest's one replica", lambda: settled(served, 1))
        served.kubectl("scale", "fgd", "chat", "--replicas=2")
        await until("a person's two replicas", lambda: settled(served, 2))
        apply(served, 1, "--server-side", "--force-conflicts")
        await until("the manifest's one replica again", lambda: settled(served, 1))
        assert any(answer.started and not answer.finished for answer in traffic.answers)
    assert traffic.failed == [], "neither broken nor refused"
    assert len(answered(traffic)) == 3
