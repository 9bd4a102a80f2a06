"""The HorizontalPodAutoscaler, and two ways in which it is set to scale LLM servers.

Source: kubernetes.io, "Horizontal Pod Autoscaling", and kubernetes
pkg/controller/podautoscaler/replica_calculator.go. Stabilisation and policies are `behavior.py`,
which has the HPA's own meaning.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import msgspec

from fastgen_api.spec import ScalingRules
from fastgen_balancer import behavior as rules
from fastgen_balancer.behavior import HPA_DOWN, HPA_UP, Change, Wished
from fastgen_cli.simulate.scaler import Observation

SYNC_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
LONGEST_PERIOD_SECONDS: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Behavior:
    """HorizontalPodAutoscalerBehavior with its defaults."""

    scale_up: ScalingRules = HPA_UP
    scale_down: ScalingRules = HPA_DOWN


DEFAULTS: Final = Behavior()
DYNAMO: Final = Behavior(
    scale_down=msgspec.structs.replace(HPA_DOWN, stabilization_window_seconds=60)
)


@dataclass(frozen=True, slots=True)
class HpaMemory:
    """What an HPA remembers between two syncs. last: the replicas that it left."""

    wishes: tuple[Wished, ...] = ()
    changes: tuple[Change, ...] = ()
    last: int | None = None


NEW: Final = HpaMemory()


def average_value(total: float, target: float, current: int, tolerance: float = TOLERANCE) -> int:
    """Replicas for a metric of target type AverageValue: GetExternalPerPodMetricReplicas."""
    if abs(total / (target * max(1, current)) - 1) <= tolerance:
        return current
    return ceil(total / target)


def value(metric: float, target: float, ready: int, current: int) -> int:
    """Replicas for a metric of target type Value: GetExternalMetricReplicas."""
    ratio = metric / target
    return current if abs(ratio - 1) <= TOLERANCE else ceil(ratio * ready)


def paced(
    wished: int, current: int, behavior: Behavior, memory: HpaMemory, now: float
) -> tuple[int, HpaMemory]:
    """What stabilisation windows and policies leave of a wish."""
    up, down = behavior.scale_up, behavior.scale_down
    wishes = memory.wishes or (Wished(now, current),)
    changes = tuple(c for c in memory.changes if c.at > now - LONGEST_PERIOD_SECONDS)
    steady = rules.stabilise(current, wished, wishes, up, down, now)
    lowest = rules.down_limit(current, changes, down, now)
    highest = rules.up_limit(current, changes, up, now)
    replicas = max(1, lowest, min(highest, steady))
    if replicas != current:
        changes = (*changes, Change(now, replicas - current))
    keep = max(1, up.stabilization_window_seconds, down.stabilization_window_seconds)
    kept = rules.remember(wishes, wished, now, keep)
    return replicas, replace(memory, wishes=kept, changes=changes, last=replicas)


@dataclass(frozen=True, slots=True)
class RunningRequests:
    """On the sum of running requests, AverageValue. target: vLLM production-stack's sample
    (`requestsRunningThreshold: 5`); behaviour and tolerance: autoscaling/v2's defaults."""

    target: float = 5.0
    behavior: Behavior = DEFAULTS


def by_running_requests(
    seen: Observation, rule: RunningRequests, memory: HpaMemory
) -> tuple[int, HpaMemory]:
    """Without the metric an HPA changes nothing."""
    pods = seen.scraped()
    if not pods:
        return seen.replicas, memory
    total = sum(pod.running for pod in pods)
    wished = average_value(total, rule.target, seen.replicas)
    return paced(wished, seen.replicas, rule.behavior, memory, seen.now)


@dataclass(frozen=True, slots=True)
class LatencyRatio:
    """On a percentile of TTFT, Value. Defaults: NVIDIA Dynamo, docs/kubernetes/autoscaling.md: P95
    over 5 minutes, 500 ms, 60 s down."""

    target_seconds: float = 0.5
    quantile: float = 0.95
    window_seconds: float = 300.0
    behavior: Behavior = DYNAMO


def by_latency_ratio(
    seen: Observation, rule: LatencyRatio, memory: HpaMemory
) -> tuple[int, HpaMemory]:
    """As if latency were proportional to the load of a replica."""
    ttft = seen.ttft(rule.quantile, rule.window_seconds)
    if ttft is None:
        return seen.replicas, memory
    wished = value(ttft, rule.target_seconds, max(1, seen.ready), seen.replicas)
    return paced(wished, seen.replicas, rule.behavior, memory, seen.now)
