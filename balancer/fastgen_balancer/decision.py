"""The values that a scaling decision is made of, and the memory between two of them."""

from dataclasses import dataclass, field
from enum import StrEnum

from fastgen_balancer.behavior import Change, Wished
from fastgen_balancer.capacity import Capacity, Judgement
from fastgen_balancer.demand import Demand
from fastgen_balancer.in_flight import InFlight
from fastgen_balancer.influx import Presence
from fastgen_balancer.signals import LocalSignals, MetricSignals, ReplicaReading, Unknown
from fastgen_balancer.supply import Waiting
from fastgen_balancer.trend import Sample


def count_of(replicas: int) -> str:
    """As people say it."""
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


class Rule(StrEnum):
    """Which rule gave the number."""

    FROM_ZERO = "FromZero"
    TO_ZERO = "ToZero"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    QUEUE_AT_BALANCER = "QueueAtBalancer"
    ENDPOINTS_SATURATED = "EndpointsSaturated"
    DEMAND_ABOVE_CAPACITY = "DemandAboveCapacity"
    SLO_MISSED_SATURATED = "SLOMissedSaturated"
    SLO_MISSED_AT_NEW_LOAD = "SLOMissedAtNewLoad"
    SLO_INFEASIBLE = "SLOInfeasible"
    DEMAND_FITS_FEWER = "DemandFitsFewer"
    STEADY = "Steady"
    FEW_SAMPLES = "FewSamples"
    NO_SIGNAL = "NoSignal"


class Blocker(StrEnum):
    """What kept a decision from going where its rule pointed."""

    STABILIZATION_WINDOW = "StabilizationWindow"
    SCALING_POLICY = "ScalingPolicy"
    PENDING_REPLICAS = "PendingReplicas"
    STUCK_REPLICAS = "StuckReplicas"
    BACKLOG_SHRINKS = "BacklogShrinks"
    CAPACITY_BLOCKED = "CapacityBlocked"
    TOLERANCE = "Tolerance"
    FLAPPING = "Flapping"
    MAX_REPLICAS = "MaxReplicas"
    FOREIGN_SCALER = "ForeignScaler"
    FROZEN = "Frozen"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The number of replicas, and why."""

    replicas: int
    rule: Rule
    message: str
    blockers: tuple[Blocker, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """What it rests on, name by name, as people read it."""


Wish = Recommendation
"""What a rule wants before bounds, windows and policies have their say."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves for the next, under another leader, too."""

    at: float | None = None
    """When the last decision was made."""
    capacity: Capacity = field(default_factory=Capacity)
    capacity_key: str = ""
    capacities: tuple[tuple[str, Capacity], ...] = ()
    """What was known under other keys, the latest first."""
    request_work: float | None = None
    """Engine-seconds of a mean request, as of the last time that some arrived."""
    samples: tuple[Sample, ...] = ()
    """Demands of the last minutes."""
    wishes: tuple[Wished, ...] = ()
    changes: tuple[Change, ...] = ()
    replicas: int | None = None
    """`spec.replicas` at the last decision."""
    decided: int | None = None
    """What that decision was."""
    pending_since: float | None = None
    """Since when replicas are missing; kept until all have been ready for a short window."""
    full_since: float | None = None
    queued_since: float | None = None
    saturated_since: float | None = None
    missed_since: float | None = None
    """Since when the SLO is missed while the replicas are not saturated."""
    known_at: float | None = None
    """When the metrics were known last."""
    ready: int | None = None
    """Endpoints that were ready at the last decision."""
    lost_at: float | None = None
    """When a replica that was ready was lost last, though nobody let it go."""
    idle_since: float | None = None
    """Since when each decision knew that nothing arrived, waited or ran."""
    in_flight: InFlight | None = None
    """Requests per replica, and what they say of the demand."""
    waiting: Waiting = field(default_factory=Waiting)
    """For nodes."""
    held_back: int = 0
    """Replicas that were wished for last, where the policies of `behavior` let fewer come."""
    presences: tuple[Presence, ...] = ()
    """Requests anywhere, of the last seconds."""
    reversals: int = 0
    """How often the number went the other way than the time before."""


def start(replicas: int, now: float, last_change_at: float | None = None) -> Memory:
    """The memory of a new leader: it wishes for what is there, so that no window is cut short."""
    changes = () if last_change_at is None else (Change(last_change_at, None),)
    return Memory(wishes=(Wished(now, replicas),), changes=changes, replicas=replicas)


@dataclass(frozen=True, slots=True)
class Sight:
    """The signals as the rules read them."""

    replicas: int
    ready: int
    pending: bool
    """Replicas are not ready, or have not been for a whole short window."""
    stuck: bool
    """They should have been ready long ago, and are no supply."""
    blocked: bool
    """No node takes them, and none would take another one."""
    idle: bool
    """Nothing has arrived or run for as long as the policy asks."""
    lack: Unknown | None
    """What is missing for a decision to let replicas go."""
    local: LocalSignals
    saturated: bool
    """The replicas together have more to do than they can."""
    missed_long: bool
    """The SLO has been missed for more than a short window without saturation."""
    queue_stands: bool
    endpoints_stay_saturated: bool
    metrics: MetricSignals | Unknown
    readings: tuple[ReplicaReading, ...]
    """The replicas whose samples are fresh."""
    judgement: Judgement
    demand: Demand | None
    carried: float | None
    """Work per second that a replica was seen to carry while the SLO was held."""
    most: float
    """Work per second that a replica is taken to carry at most."""
    missed: float | None
    """Demand per replica at which the SLO was missed."""
    highest: float
    """Demand of the last minutes, as which `missed` counts."""
    reserve: int
    """Replicas to hold beyond what the demand needs, since one was lost lately."""
    load: float | None
    """Of a replica by its requests in flight, as a share of `most`."""
    held_back: int
    """Replicas that were wished for last and that the policies let not come at once."""
