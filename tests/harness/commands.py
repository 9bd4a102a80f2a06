"""kubectl and helm on the cluster of this test run, for tests that expect them to refuse."""

from dataclasses import dataclass
from pathlib import Path

from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.command import run


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
        return self._run(self.cluster.kubectl, *words, stdin=stdin)

    def helm(self, *words: str) -> str:
        """Runs helm."""
        return self._run(self.cluster.helm, *words)

    def _run(self, program: Path, *words: str, stdin: str = "") -> str:
        flags = (f"--kubeconfig={self.kubeconfig}",)
        return run(program, *flags, *words, stdin=stdin, timeout_seconds=300)
