"""Makes a replica's probes, and the time in which it may load its model."""

from typing import Any, Final

from fastgen_api.spec import KubernetesObject

UNKNOWN_SIZE_SECONDS: Final = 3600
"""How long a model of unknown size may load before the kubelet restarts its container."""
BASE_SECONDS: Final = 600
"""For what takes its time whatever the model's size: processes, tokenizer, first steps."""
SLOWEST_READ_BYTES_PER_SECOND: Final = 20_000_000
"""A cold network volume that several replicas read at once."""
LONGEST_SECONDS: Final = 6 * 3600
PERIOD_SECONDS: Final = 2


def startup_seconds(size_bytes: int | None, deadline_seconds: int) -> int:
    """How long a replica may take to load a model of this size before it counts as hung.

    deadline_seconds: how long a rollout may go without progress; whoever raised it knows of a slow
    start, of which nothing else is known where the size is not.
    """
    if size_bytes is None:
        return max(UNKNOWN_SIZE_SECONDS, deadline_seconds)
    return min(BASE_SECONDS + size_bytes // SLOWEST_READ_BYTES_PER_SECOND, LONGEST_SECONDS)


def probes(size_bytes: int | None, deadline_seconds: int) -> KubernetesObject:
    """Startup, readiness and liveness probe of a replica whose model has this size."""
    health: dict[str, Any] = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": health | {
            "periodSeconds": PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": startup_seconds(size_bytes, deadline_seconds) // PERIOD_SECONDS,
        },
        "readinessProbe": health | {
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        # Two minutes: a busy machine must not lose the streams that keep it busy.
        "livenessProbe": health | {
            "periodSeconds": 15,
            "timeoutSeconds": 10,
            "failureThreshold": 8,
        },
    }  # fmt: skip
