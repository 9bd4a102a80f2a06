"""kubectl and helm on the cluster of this test run, for tests that expect them to refuse."""

from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster import clients
from fastgen_devcluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Commands:
    """Each returns what the program printed, or raises CommandError with its complaint."""

    cluster: Cluster

    @property
    def kubeconfig(self) -> Path:
        """The credentials that both use."""
        return self.cluster.kubeconfig

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Runs kubectl."""
        return clients.kubectl(self.cluster, *words, stdin=stdin)

    def helm(self, *words: str) -> str:
        """Runs helm."""
        return clients.helm(self.cluster, *words)
