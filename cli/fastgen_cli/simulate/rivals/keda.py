"""KEDA on the queue of waiting requests.

Source: kedacore/keda-docs 2.20, prometheus scaler and scaledobject-spec; the trigger is the
default of vLLM production-stack's Helm chart (`vllm:num_requests_waiting`, threshold 5).
"""

from dataclasses import dataclass, replace

from fastgen_cli.simulate.rivals.hpa import (
    DEFAULTS,
    NEW,
    Behavior,
    HpaMemory,
    average_value,
    paced,
)
from fastgen_cli.simulate.scaler import Observation


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """ignore_null_values: an empty answer counts as 0, KEDA's default; else it is a failure.

    fallback_replicas: from the third failure in a row on; None, the default, for no fallback.
    KEDA's documentation shows 6 with failureThreshold 3.
    """

    threshold: float = 5.0
    ignore_null_values: bool = True
    fallback_replicas: int | None = None
    failure_threshold: int = 3
    behavior: Behavior = DEFAULTS


@dataclass(frozen=True, slots=True)
class KedaMemory:
    """failures: in a row."""

    hpa: HpaMemory = NEW
    failures: int = 0


def by_queue_depth(
    seen: Observation, rule: QueueDepth, memory: KedaMemory
) -> tuple[int, KedaMemory]:
    """KEDA feeds an HPA; a failure without fallback is an HPA without its metric: no change."""
    pods = seen.scraped()
    failed = pods is None or (not pods and not rule.ignore_null_values)
    if not failed:
        total = sum(pod.waiting for pod in pods or ())
        wished = average_value(total, rule.threshold, seen.replicas)
        replicas, hpa = paced(wished, seen.replicas, rule.behavior, memory.hpa, seen.now)
        return replicas, KedaMemory(hpa, 0)
    memory = replace(memory, failures=memory.failures + 1)
    if rule.fallback_replicas is None or memory.failures < rule.failure_threshold:
        return seen.replicas, memory
    replicas, hpa = paced(
        rule.fallback_replicas, seen.replicas, rule.behavior, memory.hpa, seen.now
    )
    return replicas, replace(memory, hpa=hpa)
