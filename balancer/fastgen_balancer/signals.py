"""What the autoscaler knows when it decides; what is missing is None or Unknown, never 0.

Work is in engine-seconds per second: docs/scaling.md says what one is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fastgen_api.names import Outcome, Target


@dataclass(frozen=True, slots=True)
class LocalSignals:
    """What the balancer pods see themselves, now: it can call for replicas, never let them go."""

    queued_requests: int
    """Requests held because no replica takes them."""
    in_flight_requests: int
    """Requests sent to a replica and not ended."""
    ready_endpoints: int
    """Endpoints that may be picked."""
    saturated_endpoints: int
    """Ready endpoints whose GetLoad tells of waiting requests, a full batch or full blocks."""
    unheard_balancers: int = 0
    """Other balancer pods that did not answer: what they hold is not known."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why something is not known: a reason for programs, a sentence for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """One replica's latest values; a floor is the lowest value within the short window."""

    instance: str
    age_seconds: float
    """Since its newest sample."""
    whole_window: bool
    """It was there when the short window began, so its rates are rates of the whole window."""
    work: float | None = None
    """What it has done, in engine-seconds per second."""
    running: float | None = None
    running_floor: float | None = None
    waiting: float | None = None
    waiting_floor: float | None = None
    waiting_growth: float | None = None
    """Requests per second."""
    owed: float | None = None
    """Engine-seconds of prompts and tokens still to be computed."""
    owed_floor: float | None = None
    kv_usage: float | None = None
    kv_usage_floor: float | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Requests that ended within a window."""

    counts: Mapping[Outcome, float]
    window_seconds: float
    misses: Mapping[Target, float] | None = None
    """Requests that missed each target; None: not known."""

    @property
    def good(self) -> float:
        return self.counts.get(Outcome.GOOD, 0.0)

    @property
    def refused(self) -> float:
        return self.counts.get(Outcome.REFUSED, 0.0)

    @property
    def total(self) -> float:
        """Good and bad ones, without the excluded."""
        return sum(n for outcome, n in self.counts.items() if outcome is not Outcome.EXCLUDED)

    @property
    def all(self) -> float:
        """The excluded ones, too: somebody sent them."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class MetricSignals:
    """What Prometheus knows, read at one instant."""

    replicas: tuple[ReplicaReading, ...]
    arriving: float | None
    """Work that replicas took on, in engine-seconds per second; those that have gone within the
    window included."""
    arriving_requests: float | None
    """Requests that they took on, per second."""
    done: float | None
    """Work that they did, in engine-seconds per second."""
    queued_requests: float | None
    """Over all balancer pods."""
    queue_growth: float | None
    """Requests per second."""
    short: Outcomes | None
    long: Outcomes | None
    not_numbers: tuple[str, ...] = ()
    """Parts of the query that had NaN or an infinity in their answer."""
    latest_requests: float | None = None
    """As `arriving_requests`, of the latest LATEST_WINDOW_SECONDS."""


@dataclass(frozen=True, slots=True)
class Signals:
    """All that one decision rests on, the policy and the memory apart."""

    replicas: int
    """`spec.replicas`: what was asked for last, by whomever."""
    local: LocalSignals
    metrics: MetricSignals | Unknown
    capacity_blocked: bool = False
    """No node takes the pods that are missing: the condition CapacityBlocked."""
