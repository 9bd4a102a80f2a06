"""A model that sleeps: what it says meanwhile, what wakes it, and how it goes back to sleep."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from cluster_access import wait_until
from kstatus import kstatus
from operator_process import OperatorProcess, operator_in

from fastgen_api.names import Port
from fastgen_devcluster.cluster import PROMETHEUS_IN_CLUSTER
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-scale-to-zero"
SLEEPER: dict[str, Any] = {
    "engine": {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4},
    "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}},
    "replicas": 0,
    "scaling": {
        "mode": "Auto",
        "minReplicas": 0,
        "maxReplicas": 2,
        "scaleToZero": {"idleSeconds": 10, "holdSeconds": 120},
        "prometheus": {"url": PROMETHEUS_IN_CLUSTER},
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    },
    "balancer": {"replicas": 2},
}
UNWATCHED = SLEEPER | {
    "scaling": {
        "mode": "Disabled",
        "minReplicas": 0,
        "scaleToZero": {"holdSeconds": 3},
    },
    "balancer": {"replicas": 1},
}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18089) as running:
        running.start()
        running.create("chat", **SLEEPER)
        running.create("alone", **UNWATCHED)
        yield running


def balancers(operator: OperatorProcess, name: str) -> dict[str, str]:
    """Addresses of the balancer pods, by name."""
    selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component=balancer"
    pods = operator.get("pods", "-l", selector)["items"]
    return {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in pods}


def replicas(operator: OperatorProcess) -> list[Any]:
    selector = "fastgen.dev/deployment=chat,app.kubernetes.io/component=replica"
    return list(operator.get("pods", "-l", selector)["items"])


def leader(operator: OperatorProcess) -> str:
    """The pod that holds the lease; empty: none."""
    lease = operator.find("lease", "chat-balancer")
    identity = lease["spec"].get("holderIdentity", "") if lease else ""
    return str(identity).partition("_")[0]


def is_asleep(operator: OperatorProcess, name: str) -> bool:
    """All is as declared, and no replica is left."""
    ready = operator.condition(name, "Ready")
    return (
        (ready.get("status"), ready.get("reason")) == ("True", "ScaledToZero")
        and kstatus(operator.get("fgd", name)) == "Current"
        and not operator.get("fgd", name)["status"]["replicas"]
    )


def test_asleep_is_as_declared_and_says_what_ends_it(operator: OperatorProcess) -> None:
    wait_until("asleep", lambda: is_asleep(operator, "chat"), seconds=60)
    assert operator.condition("chat", "Available")["reason"] == "ScaledToZero"
    assert "the next request waits" in operator.condition("chat", "Ready")["message"]
    wait_until(
        "told that it wants none",
        lambda: "no replicas are wanted" in operator.condition("alone", "Ready").get("message", ""),
        seconds=30,
    )
    row = operator.kubectl("get", "fgd", "chat", "--no-headers").split()
    assert row[:3] == ["chat", "True", "0"]
    assert "ScaledToZero" in row


def test_a_request_at_another_pod_than_the_leaders_wakes_it_and_is_answered(
    operator: OperatorProcess,
) -> None:
    holder = wait_until("a leader", lambda: leader(operator), seconds=30)
    pods = balancers(operator, "chat")
    (other,) = pods.keys() - {holder}
    url = f"http://{pods[other]}:{Port.BALANCER}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    with client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.completions.create, model="chat", prompt="Hello", max_tokens=4)
        wait_until("a first replica is wanted",
                   lambda: operator.get("fgd", "chat")["spec"]["replicas"] == 1, seconds=10,
                   pause=0.2)  # fmt: skip
        assert not answer.done(), "it waits"
        assert answer.result(timeout=90).choices[0].text
    words = operator.kubectl("logs", other, "-c", "picker")
    (call, *_) = [line for line in words.splitlines() if "waits for a first replica" in line]
    assert json.loads(call)["leader"] == holder
    decision = operator.get("fgd", "chat")["status"]["lastDecision"]
    assert (decision["replicas"], decision["rule"]) == (1, "FromZero")
    wait_until("Available", lambda: operator.condition("chat", "Available")["status"] == "True",
               seconds=20)  # fmt: skip


def test_without_requests_it_goes_back_to_sleep(operator: OperatorProcess) -> None:
    wait_until("asleep", lambda: is_asleep(operator, "chat"), seconds=75)
    wait_until("no pod", lambda: not replicas(operator), seconds=30)
    found = operator.get("fgd", "chat")
    assert found["spec"]["replicas"] == 0
    assert found["status"]["lastDecision"]["rule"] == "ToZero"


def test_what_nobody_wakes_is_told_to_come_again(operator: OperatorProcess) -> None:
    wait_until("asleep", lambda: is_asleep(operator, "alone"), seconds=60)
    (address,) = balancers(operator, "alone").values()
    answer = httpx2.post(
        f"http://{address}:{Port.BALANCER}/v1/completions",
        json={"model": "alone", "prompt": "Hello", "max_tokens": 4},
        timeout=30,
    )
    assert answer.status_code == 503
    assert answer.elapsed.total_seconds() >= 3
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "no_ready_replica"
    operator.kubectl("scale", "fgd", "alone", "--replicas=1")
    wait_until("a replica is wanted", lambda: _wanted(operator) == 1, seconds=15)
    operator.kubectl("scale", "fgd", "alone", "--replicas=0")
    wait_until("none is wanted", lambda: _wanted(operator) == 0, seconds=15)


def _wanted(operator: OperatorProcess) -> int:
    return int(operator.get("deployment", "alone-replica")["spec"]["replicas"])
