"""What a test asks a FastGenDeployment on the real cluster."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from commands import Commands

NAMESPACE = "fastgen-e2e"

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
"""The label of a namespace that takes only pods of the restricted standard."""


class Kubernetes(Commands):
    """kubectl and helm, and the questions that the end-to-end tests ask with them."""

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
