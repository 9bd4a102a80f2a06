"""kubectl and Helm against the demo's cluster."""

from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.command import run


def kubectl(cluster: Cluster, *words: str) -> str:
    """What kubectl printed; raises CommandError."""
    return run(cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", *words, timeout_seconds=120)


def helm(cluster: Cluster, *words: str) -> str:
    """What Helm printed; raises CommandError."""
    return run(cluster.helm, f"--kubeconfig={cluster.kubeconfig}", *words, timeout_seconds=300)
