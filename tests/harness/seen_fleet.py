"""What an autoscaler is shown of a fleet, from a table."""

from dataclasses import dataclass, field, replace
from typing import Any

from fastgen_balancer.promql import Windows
from fastgen_balancer.signals import LocalSignals, MetricSignals, Unknown
from fastgen_cli.simulate.scaler import PodReading, Traffic


@dataclass(frozen=True)
class Seen:
    """What a rival sees, from a table."""

    now: float = 1000.0
    replicas: int = 4
    ready: int = 4
    pods: tuple[PodReading, ...] | None = ()
    means: dict[float, float] = field(default_factory=dict)
    p95: float | None = None
    told: Traffic | None = None
    capacity_blocked: bool = False

    def live(self) -> tuple[PodReading, ...]:
        return self.pods or ()

    def scraped(self) -> tuple[PodReading, ...] | None:
        return self.pods

    def concurrency(self, seconds: float) -> float:
        return self.means[seconds]

    def ttft(self, quantile: float, seconds: float) -> float | None:
        return self.p95

    def traffic(self, seconds: float) -> Traffic | None:
        return self.told

    def local(self) -> LocalSignals:
        return LocalSignals(0, 0, self.ready, 0)

    def metrics(self, windows: Windows) -> MetricSignals | Unknown:
        return Unknown("None", "no rival asks for these")


def pod(running: float = 0, waiting: float = 0, kv: float = 0, **more: Any) -> PodReading:
    """A replica\'s reading."""
    reading = PodReading("p", running, waiting, 0.0, kv, kv, waiting)
    return replace(reading, **more)


def fleet(
    count: int, running: float = 0, waiting: float = 0, kv: float = 0
) -> tuple[PodReading, ...]:
    """So many replicas that read alike."""
    return tuple(pod(running, waiting, kv) for _ in range(count))
