"""Fleets under load, as the autoscaler's signals tell of them."""

from dataclasses import replace
from typing import Any

from fastgen_api.names import Outcome
from fastgen_balancer.capacity import Capacity, Seen
from fastgen_balancer.decision import Memory, Recommendation
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import (
    LocalSignals,
    MetricSignals,
    Outcomes,
    ReplicaReading,
    Signals,
    Unknown,
)

POLICY = Policy(
    min_replicas=1,
    max_replicas=8,
    target_ratio=0.99,
    max_concurrent_requests=64,
    headroom=0.85,
    down_margin=0.8,
)
UNREACHABLE = Unknown("QueryFailed", "Prometheus did not answer")


def local(ready: int, queued: int = 0, in_flight: int = 0, saturated: int = 0) -> LocalSignals:
    return LocalSignals(
        queued_requests=queued,
        in_flight_requests=in_flight,
        ready_endpoints=ready,
        saturated_endpoints=saturated,
    )


def reading(
    name: str, work: float = 0.0, waiting: float = 0.0, running: float = 0.0, **more: Any
) -> ReplicaReading:
    values: dict[str, Any] = {
        "age_seconds": 2.0,
        "whole_window": True,
        "running_floor": running,
        "waiting_floor": waiting,
        "owed": 0.0,
        "owed_floor": 0.0,
        "kv_usage": running / 100,
        "kv_usage_floor": running / 100,
    }
    return ReplicaReading(
        instance=name,
        work=work,
        waiting=waiting,
        running=running,
        **(values | more),
    )


def outcomes(
    good: float, bad: float = 0.0, refused: float = 0.0, seconds: float = 30.0
) -> Outcomes:
    counts = {Outcome.GOOD: good, Outcome.LATE_FIRST_TOKEN: bad, Outcome.REFUSED: refused}
    return Outcomes(counts, seconds)


def metrics(
    readings: list[ReplicaReading],
    good: float = 100.0,
    bad: float = 0.0,
    queued: float | None = 0.0,
) -> MetricSignals:
    return MetricSignals(
        replicas=tuple(readings),
        arriving=sum(r.work or 0.0 for r in readings),
        arriving_requests=good / 30.0,
        done=sum(r.work or 0.0 for r in readings),
        queued_requests=queued,
        queue_growth=0.0,
        short=outcomes(good, bad),
        long=outcomes(10 * good, 10 * bad, seconds=300.0),
    )


def fleet(replicas: int, work: float, running: float = 4.0, **more: Any) -> MetricSignals:
    """Replicas that share the work per second evenly."""
    return metrics(
        [reading(f"r{i}", work / replicas, running=running) for i in range(replicas)], **more
    )


def decide(
    signals: Signals, policy: Policy = POLICY, memory: Memory | None = None, now: float = 10_000.0
) -> Recommendation:
    """One decision of a leader whose windows are all over."""
    memory = memory or Memory(missed_since=0.0)
    return recommend(signals, policy, replace(memory, replicas=signals.replicas), now)[0]


def knowing(carried: float | None = 1.0, overload: float | None = 1.0) -> Memory:
    now = 10_000.0
    return Memory(
        capacity=Capacity(
            carried=None if carried is None else Seen(carried, now),
            overload=None if overload is None else Seen(overload, now),
        ),
        missed_since=0.0,
    )


IDLE = fleet(4, 0.0, running=0.0, good=0.0)
