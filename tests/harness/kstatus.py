"""The rules by which Helm, Flux and `kubectl` plugins tell whether a resource is done.

Those of https://github.com/kubernetes-sigs/cli-utils (`pkg/kstatus/status/generic.go`) for custom
resources.
"""

from typing import Any


def kstatus(resource: dict[str, Any]) -> str:
    """Terminating, InProgress, Failed or Current."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return "InProgress"
    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return "Failed"
    return "Current"
