"""What a replica is known to carry, learned from what it was seen to carry.

Three figures per replica, in engine-seconds of work per second: `carried`, the most while the SLO
was held (its true capacity is no less), `overload`, what it did while it had more than it could (no
more), and `missed`, a demand at which the SLO was missed. Until then the latency model's word
counts: steps that keep the pace do `PREDICTED` of work per second, whatever the model and the GPU.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp2, log
from typing import Final

from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import LocalSignals, MetricSignals, ReplicaReading

PREDICTED: Final = 1.0
"""Engine-seconds of work that a replica does per second when its steps are as long as its pace
allows; fewer blocks or places than that takes make it less, which only shows under load."""
HALF_LIFE_SECONDS: Final = 12 * 3600.0
"""`carried` falls to a half in this time unless it is seen again."""
OVERLOAD_SECONDS: Final = 24 * 3600.0
"""`overload` is forgotten after this time, so that a replica gets another try."""
SETTLED_SECONDS: Final = 120.0
"""Misses count against a number of replicas that was there for so long: answers that began before
are told of late."""
MISSED_SECONDS: Final = 2 * 3600.0
"""A demand at which the SLO was missed is avoided that long: once in that time it may be tried
again, and so cost two changes of direction."""
FULL: Final = 0.9
"""Share of the batch or the KV blocks from which on a replica is near its maximum."""
BACKLOG_SECONDS: Final = 1.0
"""A backlog of this many seconds of the replica's time."""
CHANCE: Final = 0.1
"""A miss that is likelier by chance calls for nobody: among 20 requests one that is late."""
ABOVE: Final = 1.1
"""Loads closer than 10 % are the same load."""


class Verdict(StrEnum):
    """How the SLO stands."""

    GOOD = "good"
    MISSED = "missed"
    FEW_SAMPLES = "few samples"
    UNSET = "no target"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the numbers behind it.

    is_clear: a miss that chance hardly makes of requests of which as many are good as are to be.
    """

    verdict: Verdict
    good_ratio: float | None = None
    samples: float = 0.0
    is_clear: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """Engine-seconds of work per second of one replica, and when."""

    work: float
    at: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The bounds of a replica's capacity; None: not known."""

    carried: Seen | None = None
    overload: Seen | None = None
    missed: Seen | None = None
    """Demand per replica at which the SLO was missed, since they had more than they could do: with
    requests that come in bursts less than what one of them can do on the whole."""

    def missed_at(self, now: float) -> float | None:
        if self.missed is None or now - self.missed.at > MISSED_SECONDS:
            return None
        return self.missed.work

    def carried_at(self, now: float) -> float | None:
        if self.carried is None:
            return None
        half_lives = max(0.0, now - self.carried.at) / HALF_LIFE_SECONDS
        carried = self.carried.work * exp2(-half_lives)
        overload = self.overload_at(now)
        return carried if overload is None else min(carried, overload)

    def most_at(self, now: float) -> float:
        """The most that a replica is taken to carry within the SLO."""
        held = max(PREDICTED, self.carried_at(now) or 0.0)
        overload = self.overload_at(now)
        # Overloaded, it may do more than with steps as short as the pace asks for.
        return held if overload is None else min(held, overload)

    def overload_at(self, now: float) -> float | None:
        if self.overload is None or now - self.overload.at > OVERLOAD_SECONDS:
            return None
        return self.overload.work


def fresh(metrics: MetricSignals, policy: Policy) -> tuple[ReplicaReading, ...]:
    """The replicas whose samples are young enough to count."""
    return tuple(r for r in metrics.replicas if 0 <= r.age_seconds <= policy.stale_seconds)


def saturated(reading: ReplicaReading, policy: Policy) -> bool:
    """Whether a replica had more than it could do for the whole short window."""
    return (
        (reading.waiting_floor or 0.0) > 0
        or (reading.kv_usage_floor or 0.0) >= FULL
        or (reading.running_floor or 0.0) >= FULL * policy.max_concurrent_requests
        or (reading.owed_floor or 0.0) > BACKLOG_SECONDS
    )


def mostly_saturated(readings: tuple[ReplicaReading, ...], policy: Policy) -> bool:
    """Whether half of the replicas or more are; one of many is a matter of balance."""
    return bool(readings) and 2 * sum(saturated(r, policy) for r in readings) >= len(readings)


def saturated_fleet(
    local: LocalSignals,
    queue_stands: bool,
    readings: tuple[ReplicaReading, ...],
    policy: Policy,
) -> bool:
    """Whether the replicas together have more to do than they can, by anybody's word.

    A request that waits at a balancer for a moment only tells that all were full in that moment.
    """
    return (
        queue_stands
        or mostly_saturated(readings, policy)
        or (local.ready_endpoints > 0 and 2 * local.saturated_endpoints >= local.ready_endpoints)
    )


def judge(metrics: MetricSignals, policy: Policy) -> Judgement:
    """How the SLO stands in the shortest window that has requests enough to tell."""
    if policy.target_ratio is None:
        return Judgement(Verdict.UNSET)
    if metrics.short is None or metrics.long is None:
        return Judgement(Verdict.UNKNOWN)
    for window in (metrics.short, metrics.long):
        if window.total >= policy.min_samples:
            ratio = window.good / window.total
            if ratio >= policy.target_ratio:
                return Judgement(Verdict.GOOD, ratio, window.total)
            if window is metrics.short:
                clear = beyond_chance(window.total, ratio, policy.target_ratio)
                return Judgement(Verdict.MISSED, ratio, window.total, clear)
            # Misses of the long window alone may be long over.
    return Judgement(Verdict.FEW_SAMPLES, None, metrics.long.total)


def beyond_chance(samples: float, ratio: float, target: float) -> bool:
    """Whether so small a share of good ones is less likely than `CHANCE` where `target` are good.

    By Chernoff's bound of the binomial distribution (Boucheron, Lugosi and Massart, Concentration
    Inequalities, 2.2).
    """
    if ratio >= target:
        return False
    if target >= 1:
        return True
    bad, usual = 1 - ratio, 1 - target
    divergence = bad * log(bad / usual)
    if ratio > 0:
        divergence += ratio * log(ratio / target)
    return samples * divergence > -log(CHANCE)


def learn(
    capacity: Capacity,
    readings: tuple[ReplicaReading, ...],
    judgement: Judgement,
    policy: Policy,
    missed_long: bool,
    now: float,
) -> Capacity:
    """Takes in what the replicas carry now; rates count once they cover a whole window.

    `missed_long`: the SLO has been missed for a whole window without saturation.
    """
    measured = [r for r in readings if r.whole_window and (r.work or 0.0) > 0]
    if not measured:
        return capacity
    busiest = max(measured, key=lambda r: r.work or 0.0)
    most = busiest.work or 0.0
    # The busiest one's word alone: what a sick replica does says nothing about the others, and what
    # others do while it has more than it can says nothing about what they could.
    if saturated(busiest, policy) or (missed_long and above_carried(capacity, most, now)):
        capacity = replace(capacity, overload=Seen(most, now))
    if judgement.verdict in (Verdict.GOOD, Verdict.UNSET):
        if capacity.overload and most > capacity.overload.work:
            capacity = replace(capacity, overload=Seen(most, now))
        carried = capacity.carried_at(now)
        if carried is None or most >= carried:
            capacity = replace(capacity, carried=Seen(most, now))
    return capacity


def note_miss(capacity: Capacity, demand_each: float, now: float) -> Capacity:
    """The SLO is missed by saturated replicas at so much demand for each."""
    known = capacity.missed_at(now)
    if demand_each <= 0 or (known is not None and demand_each >= known):
        return capacity
    return replace(capacity, missed=Seen(demand_each, now))


def above_carried(capacity: Capacity, most: float, now: float) -> bool:
    """Whether a replica carries clearly more than it ever did while the SLO was held."""
    carried = capacity.carried_at(now)
    return carried is not None and most > ABOVE * carried
