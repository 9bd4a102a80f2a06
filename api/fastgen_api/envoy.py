"""How Envoy is started, by the balancer's own program or from an image of its own."""

from typing import Final

CONFIGURATION_FILE: Final = "envoy.yaml"
"""In the directory that the balancer's containers share."""
DRAIN_SECONDS: Final = 5
"""How long a draining Envoy still takes connections while it tells clients to go elsewhere."""


def envoy_command(
    configuration: str, *, concurrency: int = 1, log_level: str = "warning"
) -> list[str]:
    """Program and arguments; `concurrency` counts the threads that carry requests.

    Hot restarts are off: they share memory by a number that two Envoys of one machine would fight
    for.
    """
    return [
        "envoy",
        *("--config-path", configuration),
        *("--concurrency", str(concurrency)),
        *("--log-level", log_level),
        *("--drain-time-s", str(DRAIN_SECONDS)),
        *("--drain-strategy", "immediate"),
        "--disable-hot-restart",
    ]
