"""Nodes without machines hold many pods, keep everybody else's away, and leave with them."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from cluster_access import wait_until
from commands import Commands
from gpus import RESOURCE, machine_nodes
from kwok_nodes import kwok_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PODS = 40


def deployment(name: str, replicas: int, pod: dict[str, Any]) -> str:
    labels = {"app": name}
    container = {"name": "nothing", "image": "127.0.0.1:1/none:1", **pod.pop("container", {})}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **pod}}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": template,
            },
        }
    )


def job(name: str, placement: dict[str, Any]) -> str:
    container = {"name": "nothing", "image": "127.0.0.1:1/none:1"}
    pod = {"restartPolicy": "Never", "containers": [container], **placement}
    return json.dumps(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"template": {"spec": pod}},
        }
    )


def test_many_pods_turn_ready_and_nothing_stays(cluster: Commands, tmp_path: Path) -> None:
    namespace = f"kwok-test-{uuid.uuid4().hex[:6]}"
    where = ("-n", namespace)

    def ready(name: str) -> int:
        found = json.loads(cluster.kubectl("get", *where, "deployment", name, "-o", "json"))
        return int(found["status"].get("readyReplicas", 0))

    def nodes_of(name: str) -> set[str]:
        column = "jsonpath={.items[*].spec.nodeName}"
        return set(cluster.kubectl("get", "pods", *where, f"-lapp={name}", "-o", column).split())

    cluster.kubectl("create", "namespace", namespace)
    try:
        with kwok_nodes(cluster, 3, tmp_path / "kwok.log", {RESOURCE: "8"}) as nodes:
            limits = {"container": {"resources": {"limits": {RESOURCE: "1"}}}}
            crowd = deployment("crowd", PODS, {**nodes.placement})
            greedy = deployment("greedy", 25, {**nodes.placement, **limits})
            stranger = deployment("stranger", 2, {})
            for manifest in (crowd, greedy, stranger):
                cluster.kubectl("apply", *where, "-f", "-", stdin=manifest)
            wait_until("all are ready", lambda: ready("crowd") == PODS, seconds=60)
            wait_until("as many as there are GPUs", lambda: ready("greedy") == 24, seconds=60)
            assert nodes_of("crowd") == set(nodes.names)
            wait_until("strangers have nodes", lambda: nodes_of("stranger"), seconds=20)
            assert nodes_of("stranger") <= set(machine_nodes(cluster))
            cluster.kubectl("apply", *where, "-f", "-", stdin=job("task", nodes.placement))
            done = ("wait", *where, "--for=condition=Complete", "job/task", "--timeout=30s")
            cluster.kubectl(*done)
            # The other pods are still there when the nodes go.
            cluster.kubectl("delete", *where, "deployment", "crowd", "--wait=false")
        shown = cluster.kubectl("get", "nodes", "-o", "name")
        assert not any(name in shown for name in nodes.names)
        assert nodes_of("crowd") == set()
        assert not nodes_of("greedy") & set(nodes.names)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
