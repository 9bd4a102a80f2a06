"""Knative's pod autoscaler (KPA) on concurrency.

Source: knative/serving config/core/configmaps/autoscaler.yaml and
pkg/autoscaler/scaling/autoscaler.go. It scrapes pods and activator itself: no Prometheus.
"""

from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from fastgen_cli.simulate.scaler import Observation

TICK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Concurrency:
    """container-concurrency-target-default 100 at 70 %, and the other defaults."""

    target: float = 100.0
    utilization: float = 0.7
    stable_seconds: float = 60.0
    panic_share: float = 0.1
    panic_threshold: float = 2.0
    max_up_rate: float = 1000.0
    max_down_rate: float = 2.0


@dataclass(frozen=True, slots=True)
class KpaMemory:
    """panicked_at: when load was above the threshold last; None out of panic."""

    panicked_at: float | None = None
    most_in_panic: int = 0


def by_concurrency(
    seen: Observation, rule: Concurrency, memory: KpaMemory
) -> tuple[int, KpaMemory]:
    """In panic the replicas never go below the most that was wanted in it."""
    ready, target = max(1, seen.ready), rule.target * rule.utilization
    stable = seen.concurrency(rule.stable_seconds)
    panic = seen.concurrency(rule.stable_seconds * rule.panic_share)
    lowest, highest = floor(ready / rule.max_down_rate), ceil(rule.max_up_rate * ready)
    wanted_stable = max(lowest, min(highest, ceil(stable / target)))
    wanted_panic = max(lowest, min(highest, ceil(panic / target)))
    since = memory.panicked_at
    if wanted_panic / ready >= rule.panic_threshold:
        since = seen.now
    elif since is not None and since + rule.stable_seconds < seen.now:
        since = None
    if since is None:
        return max(1, wanted_stable), KpaMemory()
    most = max(memory.most_in_panic, wanted_stable, wanted_panic)
    return max(1, most), KpaMemory(since, most)
