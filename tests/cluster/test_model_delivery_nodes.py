"""On which nodes a model is downloaded and read: a pool of its own, and a volume of one node."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster_access import wait_until
from commands import Commands
from delivery_questions import (
    SMALL,
    create,
    delete,
    delivering_operator,
    is_ready,
    pods,
    wait_until_delivered,
)
from gpus import machine_nodes
from hub_server import HubServer
from operator_process import OperatorProcess

from fastgen_devcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

POOL = "fastgen.test/pool"
MINE = {"type": "PersistentVolumeClaim", "claimName": "mine"}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, hub: HubServer) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    with delivering_operator("fastgen-delivery-nodes", folder, hub, 18096) as running:
        yield running


@contextmanager
def pool(cluster: Commands, node: str) -> Iterator[None]:
    """A node with a label, which only who tolerates its taint is placed on."""
    cluster.kubectl("label", "node", node, f"{POOL}=models")
    cluster.kubectl("taint", "node", node, f"{POOL}=models:NoSchedule")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{POOL}-")
        cluster.kubectl("label", "node", node, f"{POOL}-")


def claim(operator: OperatorProcess, name: str, mode: str) -> None:
    """Of a class whose volumes the scheduler may use on each node."""
    size = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": [mode], "storageClassName": "shared", "resources": size}
    manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    operator.kubectl("create", "-f", "-", stdin=json.dumps(manifest | {"spec": spec}))


def nodes(operator: OperatorProcess, name: str, component: str = "replica") -> list[str]:
    found = pods(operator, name, component).values()
    return [each["spec"].get("nodeName", "") for each in found]


def test_a_pod_template_brings_the_download_to_a_tainted_pool(
    operator: OperatorProcess, cluster: Commands
) -> None:
    node = machine_nodes(cluster)[1]
    toleration = {"key": POOL, "operator": "Equal", "value": "models", "effect": "NoSchedule"}
    variable = {"name": "NO_PROXY", "value": str(Cluster.current().host_address)}
    template = {
        "spec": {
            "nodeSelector": {POOL: "models"},
            "tolerations": [toleration],
            "securityContext": {"supplementalGroups": [3000]},
            "initContainers": [{"name": "download", "env": [variable]}],
        }
    }
    with pool(cluster, node):
        cache = {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": "shared",
                 "accessModes": ["ReadWriteMany"], "retentionPolicy": "Delete"}  # fmt: skip
        create(operator, "pooled", {"cache": cache}, replicas=1, podTemplate=template)
        wait_until("Ready", lambda: is_ready(operator, "pooled"), seconds=180)
        (download,) = pods(operator, "pooled", "download").values()
        assert nodes(operator, "pooled", "download") == [node]
        assert nodes(operator, "pooled") == [node]
        assert download["spec"]["securityContext"]["supplementalGroups"] == [3000]
        assert variable in download["spec"]["containers"][0]["env"]
        assert download["spec"]["serviceAccountName"] == "pooled-download"
        (replica,) = pods(operator, "pooled").values()
        assert "initContainers" not in replica["spec"]
        delete(operator, "pooled")


def test_all_that_use_a_claim_of_one_node_go_to_one_node(operator: OperatorProcess) -> None:
    """Left to themselves two replicas are spread; two deployments share the claim here."""
    claim(operator, "mine", "ReadWriteOnce")
    create(operator, "first", {"cache": MINE}, replicas=2)
    wait_until("Ready", lambda: is_ready(operator, "first"), seconds=180)
    create(operator, "second", {"cache": MINE}, replicas=2)
    wait_until("Ready", lambda: is_ready(operator, "second"), seconds=180)
    found = [*nodes(operator, "first"), *nodes(operator, "second")]
    assert len(found) == 4
    assert len(set(found)) == 1
    # A rollout needs no other node, either.
    operator.patch("first", {"resources": SMALL | {"requests": {"cpu": "60m", "memory": "256Mi"}}})
    wait_until("updated", lambda: is_ready(operator, "first"), seconds=180)
    assert set(nodes(operator, "first")) == set(found)
    delete(operator, "first", "second")


def test_a_claim_of_one_pod_is_refused_to_more_replicas(operator: OperatorProcess) -> None:
    claim(operator, "single", "ReadWriteOncePod")
    cache = {"type": "PersistentVolumeClaim", "claimName": "single"}
    create(operator, "lonely", {"cache": cache})
    wait_until_delivered(operator, "lonely")
    operator.patch("lonely", {"replicas": 2})

    def stalled() -> str:
        found = operator.condition("lonely", "Stalled")
        return found["message"] if found["reason"] == "ClaimAccessMode" else ""

    told = wait_until("Stalled", stalled, seconds=60)
    assert "spec.replicas is 2" in told
    assert "PersistentVolumeClaim single, which spec.model.cache.claimName names" in told
    operator.patch("lonely", {"replicas": 1})
    wait_until("Ready", lambda: is_ready(operator, "lonely"), seconds=180)
    delete(operator, "lonely")
