"""Hundreds of FastGenDeployments whose pods run on nodes without machines."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cluster_access import Kubernetes
from kwok_nodes import RUN_LABEL, TAINT, Nodes, kwok_nodes
from operator_process import (
    CRD,
    CRD_NAME,
    REPOSITORY,
    OperatorProcess,
    account_kubeconfig,
    audited,
    chart_operator_asleep,
)

from fastgen_devcluster import Cluster

SYSTEM: Final = "fastgen-fleet"
"""Namespace and release of the operator's rights."""
TEAMS: Final = tuple(f"fastgen-fleet-{number}" for number in range(10))
NODES: Final = 3
BATCH: Final = 100
CLEARED_SECONDS: Final = 1200
"""The namespace controller deletes some ten thousand objects, some each second."""


@dataclass
class Fleet:
    """An operator of the whole cluster, and FastGenDeployments in the namespaces of TEAMS."""

    operator: OperatorProcess
    nodes: Nodes
    size: int
    keys: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kubernetes(self) -> Kubernetes:
        return self.operator.kubernetes

    def create(self) -> None:
        """Creates all FastGenDeployments."""
        self.keys = [(TEAMS[number % len(TEAMS)], f"chat-{number}") for number in range(self.size)]
        for begin in range(0, self.size, BATCH):
            items = [self._manifest(*key) for key in self.keys[begin : begin + BATCH]]
            manifest = {"apiVersion": "v1", "kind": "List", "items": items}
            self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))

    def _manifest(self, namespace: str, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "fastgen.dev/v1alpha1",
            "kind": "FastGenDeployment",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
                "scaling": {"mode": "Disabled"},
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                **self.nodes.placement,
            },
        }

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return str(self.kubernetes.kubectl(*words, stdin=stdin))

    def resources(self) -> list[dict[str, Any]]:
        """All FastGenDeployments."""
        return list(json.loads(self.kubectl("get", "fgd", "-A", "-o", "json"))["items"])

    def unready(self) -> list[str]:
        """Those that are not Ready as they are declared, and what they say."""
        return [
            f"{each['metadata']['name']}: {_told(each)}"
            for each in self.resources()
            if not _is_ready(each)
        ]

    def replicas(self) -> set[str]:
        """The numbers of replicas that the fleet's Deployments are told to have."""
        labels = "app.kubernetes.io/name=fastgen,app.kubernetes.io/component=replica"
        columns = "jsonpath={.items[*].spec.replicas}"
        return set(self.kubectl("get", "deployment", "-A", "-l", labels, "-o", columns).split())

    def children(self) -> int:
        """How many objects the FastGenDeployments have, pods included."""
        text = self.operator.answer("/metrics") or ""
        series = (line.rpartition(" ") for line in text.splitlines())
        return sum(
            int(float(value))
            for name, _, value in series
            if name.startswith("fastgen_operator_known_objects{") and "FastGen" not in name
        )

    def writes(self, since: float) -> list[str]:
        """What any service account of ours wrote, Leases apart."""
        path = self.kubernetes.cluster.audit_log
        if path is None:
            pytest.skip("only the development cluster shows its audit log")
        spaces = {f"system:serviceaccount:{each}" for each in (SYSTEM, *TEAMS)}
        return [
            text
            for user, text in audited(path.read_text(), since)
            if user.rpartition(":")[0] in spaces and "/leases" not in text
        ]

    def memory_mib(self) -> dict[str, float]:
        """What the operator's process has in memory, and had at most."""
        assert self.operator.process
        lines = Path(f"/proc/{self.operator.process.pid}/status").read_text().splitlines()
        words = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
        return {name: int(words[name]) / 1024 for name in ("VmRSS", "VmHWM")}


def _told(resource: Mapping[str, Any]) -> str:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return "; ".join(each["message"] for each in conditions if each["type"] == "Ready")


def _is_ready(resource: Mapping[str, Any]) -> bool:
    status = resource.get("status") or {}
    ready = [each["status"] for each in status.get("conditions") or () if each["type"] == "Ready"]
    return ready == ["True"] and (
        status.get("observedGeneration") == resource["metadata"]["generation"]
    )


@contextmanager
def fleet_of(size: int, folder: Path, port: int) -> Iterator[Fleet]:
    """A fleet that is not created yet, and its operator, not started; takes all away at the end."""
    kubernetes = Kubernetes(Cluster.current())
    kubectl = kubernetes.kubectl
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=helm")
    kubectl(*apply, "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")
    with chart_operator_asleep(kubernetes), kwok_nodes(
        kubernetes, NODES, folder / "kwok.log"
    ) as nodes, _only_on(kubernetes, nodes), _namespaces(kubernetes):  # fmt: skip
        operator = OperatorProcess(
            kubernetes,
            SYSTEM,
            _kubeconfig(kubernetes, folder),
            folder / "operator.log",
            {"runtime": "runtime:none", "control": "control:none"},
            port,
        )
        try:
            yield Fleet(operator, nodes, size)
        finally:
            operator.stop()


@contextmanager
def _only_on(kubernetes: Kubernetes, nodes: Nodes) -> Iterator[None]:
    """Meanwhile all new pods come to these nodes: a balancer's placement cannot be chosen."""
    ours = ("node", f"--selector={RUN_LABEL}={nodes.run}")
    kubernetes.kubectl("cordon", f"--selector=!{RUN_LABEL}")
    kubernetes.kubectl("taint", *ours, f"{TAINT['key']}-")
    try:
        yield
    finally:
        kubernetes.kubectl("uncordon", f"--selector=!{RUN_LABEL}")


@contextmanager
def _namespaces(kubernetes: Kubernetes) -> Iterator[None]:
    for name in (SYSTEM, *TEAMS):
        kubernetes.kubectl("create", "namespace", name)
    try:
        yield
    finally:
        kubernetes.kubectl("delete", "namespace", *TEAMS, SYSTEM, "--wait=false")
        kinds = ("clusterrole", "clusterrolebinding")
        kubernetes.kubectl("delete", ",".join(kinds), SYSTEM, "--ignore-not-found")
        seconds_until(lambda: not _left(kubernetes), CLEARED_SECONDS, pause=5)


def _left(kubernetes: Kubernetes) -> str:
    return str(kubernetes.kubectl("get", "namespace", *TEAMS, "--ignore-not-found", "-o", "name"))


def _kubeconfig(kubernetes: Kubernetes, folder: Path) -> Path:
    """Rights as the chart gives them for the whole cluster, and a kubeconfig with these alone."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    text = kubernetes.helm(
        "template", SYSTEM, str(REPOSITORY / "charts" / "fastgen"), "--namespace", SYSTEM, "--set",
        f"images.control=c:1,images.runtime=r:1,rbac.aggregateRoles=false,fullnameOverride={SYSTEM},"
        "serviceAccount.name=fastgen",
    )  # fmt: skip
    rights = [each for each in yaml.safe_load_all(text) if each and each["kind"] in kinds]
    kubernetes.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    return account_kubeconfig(kubernetes, SYSTEM, folder)


def patch_all(fleet: Fleet, keys: list[tuple[str, str]], spec: dict[str, Any]) -> None:
    """Merges into the spec of some FastGenDeployments."""
    for namespace, name in keys:
        fleet.kubectl("-n", namespace, "patch", "fgd", name, "--type=merge", "-p",
                      json.dumps({"spec": spec}))  # fmt: skip


def seconds_until(holds: Any, limit: float, pause: float = 1.0) -> float:
    """How long it takes until it holds; fails after the limit."""
    began = time.monotonic()
    while not holds():
        took = time.monotonic() - began
        assert took < limit, f"not within {limit:.0f} s"
        time.sleep(pause)
    return time.monotonic() - began
