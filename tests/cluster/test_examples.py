"""Every example is applied; those with GPUs go where GPUs are, and wait where there are none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import wait_until
from commands import Commands
from gpus import RESOURCE, gpus, machine_nodes
from operator_process import OperatorProcess
from operator_questions import delete

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
NEEDS_GPUS = [path for path in EXAMPLES if RESOURCE in path.read_text()]
TAINT = f"{RESOURCE}=present:NoSchedule"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_becomes_objects_that_the_api_server_takes(
    operator: OperatorProcess, path: Path
) -> None:
    operator.kubectl("apply", "-f", str(path))
    resources = list(yaml.safe_load_all(path.read_text()))
    for resource in resources:
        has_children(operator, resource)
    for resource in resources:
        delete(operator, resource["metadata"]["name"])


def has_children(operator: OperatorProcess, resource: dict[str, Any]) -> None:
    name = resource["metadata"]["name"]
    balancer = resource["spec"].get("balancer", {}).get("name") or name
    wait_until(
        "the balancer", lambda: operator.find("deployment", f"{balancer}-balancer"), seconds=30
    )
    if resource["spec"]["model"]["source"].startswith("file:"):
        wait_until("replicas", lambda: operator.find("deployment", f"{name}-replica"), seconds=30)
    else:
        wait_until("the claim", lambda: operator.find("pvc", f"{name}-models"), seconds=30)
        wait_until("a download", lambda: jobs(operator, name), seconds=30)
    wait_until("a status", lambda: operator.condition(name, "Stalled"), seconds=30)
    assert operator.condition(name, "Stalled")["status"] == "False"
    # What is applied together comes one after the other: a route may have had no end at first.
    wait_until("all routes", lambda: not operator.condition(name, "RouteBlocked"), seconds=30)


def jobs(operator: OperatorProcess, name: str) -> Any:
    return operator.get("jobs", "-l", f"fastgen.dev/deployment={name}")["items"]


@contextmanager
def tainted(cluster: Commands, node: str) -> Iterator[None]:
    """Only who tolerates it is placed there, as on most nodes with GPUs."""
    cluster.kubectl("taint", "node", node, TAINT)
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{TAINT}-")


def without_its_size(path: Path) -> dict[str, Any]:
    """The example with a model that needs no download, and with no CPUs or memory to wait for."""
    resource: dict[str, Any] = yaml.safe_load(path.read_text())
    limits = resource["spec"]["resources"]["limits"]
    resource["spec"]["model"] = {"source": "file:///models/SmolLM2-135M-Instruct.gguf"}
    resource["spec"]["resources"] = {"limits": {RESOURCE: limits[RESOURCE]}}
    return resource


def placed_on(operator: OperatorProcess, name: str) -> str:
    """The node of the only replica; empty: none yet."""
    selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component=replica"
    (pod,) = operator.get("pods", "-l", selector)["items"]
    return str(pod["spec"].get("nodeName", ""))


@pytest.mark.parametrize("path", NEEDS_GPUS, ids=lambda path: path.stem)
def test_replicas_wait_for_gpus_in_the_schedulers_words_and_go_where_they_are(
    operator: OperatorProcess, cluster: Commands, path: Path
) -> None:
    resource = without_its_size(path)
    name = resource["metadata"]["name"]
    wanted = int(resource["spec"]["resources"]["limits"][RESOURCE])
    operator.kubectl("create", "-f", "-", stdin=json.dumps(resource))
    blocked = wait_until(
        "CapacityBlocked", lambda: operator.condition(name, "CapacityBlocked"), seconds=30
    )
    assert (blocked["status"], blocked["reason"]) == ("True", "Unschedulable")
    assert f"Insufficient {RESOURCE}" in blocked["message"]
    assert not placed_on(operator, name)
    with tainted(cluster, machine_nodes(cluster)[1]), gpus(cluster, {1: wanted}):
        node = wait_until("a node", lambda: placed_on(operator, name), seconds=30)
        assert node == machine_nodes(cluster)[1]
        wait_until(
            "no word of capacity",
            lambda: not operator.condition(name, "CapacityBlocked"),
            seconds=30,
        )
        delete(operator, name)


def test_there_are_examples_with_one_gpu_and_with_several() -> None:
    counts = {yaml.safe_load(path.read_text())["spec"]["resources"]["limits"][RESOURCE]
              for path in NEEDS_GPUS}  # fmt: skip
    assert counts == {"1", "4"}
