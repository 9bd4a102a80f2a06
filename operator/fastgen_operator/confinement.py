"""What every pod that we make may do, and how it is scraped."""

from collections.abc import Iterable
from typing import Final

from fastgen_api.spec import KubernetesObject

USER_ID: Final = 65532
"""The images' own unprivileged user."""

POD_SECURITY: Final[KubernetesObject] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}

CONTAINER_SECURITY: Final[KubernetesObject] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

POD_NAME: Final[KubernetesObject] = {
    "name": "POD_NAME",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
}

HOME: Final[KubernetesObject] = {"name": "HOME", "value": "/tmp"}
"""Libraries that keep caches need a folder that can be written."""


def scrape_annotations(port: int) -> dict[str, str]:
    """Annotations by which the usual Prometheus pod discovery finds `/metrics`."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def local_references(secret_names: Iterable[str]) -> list[KubernetesObject]:
    """References to Secrets by name."""
    return [{"name": name} for name in secret_names]
