"""Nodes without machines, for thousands of pods that turn Ready and do nothing."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cluster_access import wait_until
from commands import Commands

from fastgen_devcluster.programs import KWOK, ensure_programs
from fastgen_devcluster.settings import Settings

STAGES: Final = Path(__file__).with_name("kwok_stages.yaml")
# What every node of any run carries; the provisioner of volumes keeps away from it too.
TYPE: Final = {"type": "kwok"}
RUN_LABEL: Final = "kwok.test/run"
TAINT: Final = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
# Reserved for benchmarks: no packet to a pretended pod leaves this machine's namespaces.
POD_CIDR: Final = "198.18.0.0/16"
CAPACITY: Final = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of one run."""

    names: tuple[str, ...]
    run: str

    @property
    def placement(self) -> dict[str, Any]:
        """What goes into a pod's spec, or a FastGenDeployment's, to be put on these nodes."""
        return {
            "nodeSelector": {**TYPE, RUN_LABEL: self.run},
            "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
        }


@contextmanager
def kwok_nodes(
    cluster: Commands, count: int, log: Path, resources: dict[str, str] | None = None
) -> Iterator[Nodes]:
    """So many nodes until the end, when their pods go with them.

    log: of kwok, which is compiled the first time. resources: what each node has more than
    CPUs and memory, such as GPUs.
    """
    programs = ensure_programs(Settings.from_environment().cache, (KWOK,))
    run = uuid.uuid4().hex[:6]
    nodes = Nodes(tuple(f"kwok-{run}-{number}" for number in range(count)), run)
    command: list[str | Path] = [
        programs.kwok,
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={STAGES}",
        f"--manage-nodes-with-label-selector={RUN_LABEL}={run}",
        f"--cidr={POD_CIDR}",
        # Without a heartbeat nodes are taken for lost after a minute, and their pods for unready.
        "--node-lease-duration-seconds=40",
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        with _made(cluster, nodes, resources or {}):
            yield nodes
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def _made(cluster: Commands, nodes: Nodes, resources: dict[str, str]) -> Iterator[None]:
    selector = f"{RUN_LABEL}={nodes.run}"
    manifests = [_node(name, nodes.run, resources) for name in nodes.names]
    listing = {"apiVersion": "v1", "kind": "List", "items": manifests}
    try:
        cluster.kubectl("create", "--filename=-", stdin=json.dumps(listing))
        ready = ("wait", "--for=condition=Ready", "node", f"--selector={selector}")
        cluster.kubectl(*ready, "--timeout=60s")
        yield
    finally:
        # Nodes first, so that nothing new arrives; then the pods that are bound to them.
        cluster.kubectl("delete", "node", f"--selector={selector}", "--wait=false")
        wait_until("no pod is left", lambda: not _delete_pods(cluster, nodes), seconds=60)


def _node(name: str, run: str, resources: dict[str, str]) -> dict[str, Any]:
    capacity = CAPACITY | resources
    labels = {**TYPE, RUN_LABEL: run, "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [TAINT]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _delete_pods(cluster: Commands, nodes: Nodes) -> int:
    """Delete the pods of nodes that are gone; how many there were."""
    found = _pods(cluster, nodes)
    for namespace, names in found.items():
        force = ("--grace-period=0", "--force", "--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "pod", "-n", namespace, *force, *names)
    return sum(map(len, found.values()))


def _pods(cluster: Commands, nodes: Nodes) -> dict[str, list[str]]:
    """The names of the nodes' pods by namespace."""
    columns = (
        "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.namespace} {.metadata.name}\n{end}"
    )
    found: dict[str, list[str]] = {}
    for line in cluster.kubectl("get", "pods", "-A", f"--output={columns}").splitlines():
        node, _, rest = line.partition(" ")
        if node in nodes.names:
            namespace, _, name = rest.partition(" ")
            found.setdefault(namespace, []).append(name)
    return found
