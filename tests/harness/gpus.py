"""GPUs that the scheduler counts and nobody has: for Pending pods and rollouts without a spare."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from commands import Commands

RESOURCE = "nvidia.com/gpu"


def machine_nodes(cluster: Commands) -> list[str]:
    """The nodes by number, those apart that kwok pretends to be."""
    listing = cluster.kubectl("get", "nodes", "--selector=type!=kwok", "--output=name")
    return sorted(line.removeprefix("node/") for line in listing.split())


@contextmanager
def gpus(cluster: Commands, counts: Mapping[int, int], resource: str = RESOURCE) -> Iterator[None]:
    """Nodes have so many GPUs until the end.

    counts: GPUs by the node's number. Nodes that are left out have none.
    """
    names = machine_nodes(cluster)
    try:
        for number, count in counts.items():
            _set(cluster, names[number], resource, str(count))
        yield
    finally:
        for number in counts:
            _set(cluster, names[number], resource, None)


def _set(cluster: Commands, node: str, resource: str, count: str | None) -> None:
    # The kubelet copies capacity into allocatable within seconds; the scheduler need not wait.
    status = {"capacity": {resource: count}, "allocatable": {resource: count}}
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)
