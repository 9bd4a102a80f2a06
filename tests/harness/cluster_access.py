"""How tests reach the real cluster: kubectl, helm, and what a FastGenDeployment says of itself."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastgen_devcluster import Cluster

NAMESPACE = "fastgen-e2e"

@dataclass(frozen=True)
class Kubernetes:
    """kubectl and helm against the session's cluster."""

    cluster: Cluster

    def run(self, program: str | Path, *words: str, stdin: str | None = None) -> str:
        """The program's output; fails the test with its error text."""
        done = subprocess.run(
            [str(program), *words],
            input=stdin,
            capture_output=True,
            text=True,
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)},
            timeout=300,
        )
        assert done.returncode == 0, f"{Path(program).name} {' '.join(words)}: {done.stderr}"
        return done.stdout

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.run(self.cluster.kubectl, *words, stdin=stdin)

    def helm(self, *words: str) -> str:
        return self.run(self.cluster.helm, *words)

    def get(self, *words: str) -> Any:
        """An object as a dict."""
        return json.loads(self.kubectl("get", "-n", NAMESPACE, *words, "-o", "json"))

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(manifest))

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        """Merge into a FastGenDeployment's spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "-n", NAMESPACE, "fgd", name, "--type=merge", "-p", patch)

    def condition(self, name: str, condition_type: str) -> dict[str, Any]:
        """One condition of a FastGenDeployment, or an empty dict."""
        conditions = self.get("fgd", name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == condition_type), {})

    def is_settled(self, name: str, replicas: int) -> bool:
        """Whether the current generation is Ready with this many ready replicas and no others."""
        found = self.get("fgd", name)
        status = found.get("status", {})
        ready = self.condition(name, "Ready").get("status") == "True"
        pods = self.replicas(name)
        return (
            ready
            and status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("readyReplicas") == replicas
            and len(pods) == replicas
        )

    def replicas(self, name: str) -> list[dict[str, Any]]:
        """The replica pods that exist, terminating ones included."""
        selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component=replica"
        return list(self.get("pods", "-l", selector)["items"])


def wait_until(what: str, holds: Callable[[], Any], seconds: float, pause: float = 0.5) -> Any:
    """The first truthy answer of `holds`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := holds():
            return answer
        time.sleep(pause)
    pytest.fail(f"not within {seconds:.0f} s: {what}")
