"""kubectl and Helm on a cluster."""

from pathlib import Path

from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.command import run


def kubectl(cluster: Cluster, *words: str, stdin: str = "", timeout_seconds: float = 300) -> str:
    """What kubectl printed; raises CommandError."""
    return _run(cluster, cluster.kubectl, words, stdin, timeout_seconds)


def helm(cluster: Cluster, *words: str, timeout_seconds: float = 300) -> str:
    """What Helm printed; raises CommandError."""
    return _run(cluster, cluster.helm, words, "", timeout_seconds)


def _run(
    cluster: Cluster, program: Path, words: tuple[str, ...], stdin: str, timeout_seconds: float
) -> str:
    flag = f"--kubeconfig={cluster.kubeconfig}"
    return run(program, flag, *words, stdin=stdin, timeout_seconds=timeout_seconds)
