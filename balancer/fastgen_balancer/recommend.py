"""How many replicas there should be."""

from dataclasses import dataclass, replace
from typing import Final

from fastgen_balancer import in_flight, influx
from fastgen_balancer.capacity import (
    SETTLED_SECONDS,
    Judgement,
    Verdict,
    fresh,
    judge,
    learn,
    note_miss,
    saturated_fleet,
)
from fastgen_balancer.decision import Blocker, Memory, Recommendation, Rule, Sight, Wish
from fastgen_balancer.demand import Demand, demand_of, request_work
from fastgen_balancer.inputs import inputs_of
from fastgen_balancer.lack import lack_of
from fastgen_balancer.pace import bounded, paced, remember
from fastgen_balancer.recollection import observe, since
from fastgen_balancer.rules import wish_for
from fastgen_balancer.scaling_policy import SHORT_WINDOW_SECONDS, Policy
from fastgen_balancer.signals import LocalSignals, MetricSignals, ReplicaReading, Signals, Unknown
from fastgen_balancer.supply import supply_seconds
from fastgen_balancer.trend import note, rise_ahead

AT_ONCE: Final = (Rule.BELOW_MINIMUM, Rule.ABOVE_MAXIMUM, Rule.FROM_ZERO, Rule.TO_ZERO)
"""What the user's bounds or an own window have decided: `behavior` has no say in it."""


def recommend(
    signals: Signals, policy: Policy, memory: Memory, now: float
) -> tuple[Recommendation, Memory]:
    """Decides; `now` is in seconds of the clock that the memory was made with.

    A clock that jumps, back or forth, moves what is remembered with it: it neither ends nor
    shortens a window. Never raises.
    """
    memory = observe(signals, policy, memory, now)
    sight, memory = _look(signals, policy, memory, now)
    wish = bounded(wish_for(sight, policy), policy)
    decision = wish = replace(wish, inputs=inputs_of(sight, policy))
    if wish.rule not in AT_ONCE or _is_forbidden(wish, policy):
        decision = paced(wish, signals.replicas, policy, memory, now)
    memory = remember(memory, wish, policy, now)
    held_back = wish.replicas if Blocker.SCALING_POLICY in decision.blockers else 0
    return decision, replace(memory, decided=decision.replicas, held_back=held_back)


def _is_forbidden(wish: Wish, policy: Policy) -> bool:
    return wish.rule is Rule.TO_ZERO and policy.scale_down.select_policy == "Disabled"


@dataclass(frozen=True, slots=True)
class _Learned:
    """What the metrics tell. missed_long: the SLO, for a while, and not because all are full."""

    judgement: Judgement
    demand: Demand | None
    missed_long: bool


def _look(signals: Signals, policy: Policy, memory: Memory, now: float) -> tuple[Sight, Memory]:
    """Reads the signals, and learns from them what a replica carries."""
    metrics, local = signals.metrics, signals.local
    readings = () if isinstance(metrics, Unknown) else fresh(metrics, policy)

    def lasted(begun: float | None, seconds: float) -> bool:
        return begun is not None and now - begun >= seconds

    queue_stands = lasted(memory.queued_since, policy.queue_seconds)
    saturated = saturated_fleet(local, queue_stands, readings, policy)
    memory = _note_presence(signals, memory, now)
    learned = _Learned(Judgement(Verdict.UNKNOWN), demand=None, missed_long=False)
    if not isinstance(metrics, Unknown) and readings:
        learned, memory = _learn(metrics, local, readings, saturated, policy, memory, now)
    lack = lack_of(signals, policy)
    memory = _look_for_rest(signals, learned.demand, lack, memory, now)
    ready = min(local.ready_endpoints, signals.replicas)
    memory = _note_in_flight(signals, None if lack else learned.demand, ready, memory, now)
    sight = Sight(
        replicas=signals.replicas,
        ready=ready,
        pending=memory.pending_since is not None,
        stuck=ready < signals.replicas and lasted(memory.pending_since, policy.pending_seconds),
        blocked=signals.capacity_blocked and ready < signals.replicas,
        idle=policy.min_replicas == 0 and lasted(memory.idle_since, policy.idle_seconds),
        lack=lack,
        local=local,
        saturated=saturated,
        missed_long=learned.missed_long,
        queue_stands=queue_stands,
        endpoints_stay_saturated=lasted(memory.saturated_since, policy.saturated_seconds),
        metrics=metrics,
        readings=readings,
        judgement=learned.judgement,
        demand=learned.demand,
        carried=memory.capacity.carried_at(now),
        most=memory.capacity.most_at(now),
        missed=memory.capacity.missed_at(now),
        highest=_highest(learned.demand, memory),
        reserve=0 if memory.lost_at is None else 1,
        load=in_flight.load_of(memory.in_flight),
        held_back=memory.held_back,
    )
    return sight, memory


def _learn(
    metrics: MetricSignals,
    local: LocalSignals,
    readings: tuple[ReplicaReading, ...],
    saturated: bool,
    policy: Policy,
    memory: Memory,
    now: float,
) -> tuple[_Learned, Memory]:
    """Judges the metrics, and takes from them what is asked and what a replica carries."""
    judgement = judge(metrics, policy)
    each = request_work(metrics) or memory.request_work
    lead = supply_seconds(memory.waiting, policy.lead_seconds, now)
    carried = local.ready_endpoints * memory.capacity.most_at(now)
    demand = demand_of(metrics, readings, each, lead, carried, influx.surge(memory.presences))
    missed = judgement.verdict is Verdict.MISSED and not saturated
    missed_since = since(memory.missed_since, missed, now)
    missed_long = missed_since is not None and now - missed_since > SHORT_WINDOW_SECONDS
    capacity = memory.capacity
    if memory.full_since is None:
        # New replicas take from what the others do: for a window no rate is anybody's capacity.
        capacity = learn(capacity, readings, judgement, policy, missed_long, now)
    memory = replace(
        memory,
        capacity=capacity,
        missed_since=missed_since,
        known_at=now,
        request_work=each,
    )
    ahead, memory = _look_ahead(demand, memory, now)
    if judgement.is_clear and saturated and ahead:
        memory = _note_miss(ahead, local.ready_endpoints, memory, now)
    return _Learned(judgement, ahead, missed_long), memory


def _note_presence(signals: Signals, memory: Memory, now: float) -> Memory:
    local, metrics = signals.local, signals.metrics
    if local.unheard_balancers:
        # What they hold would come back as a growth.
        return replace(memory, presences=())
    rate = None if isinstance(metrics, Unknown) else metrics.arriving_requests
    requests = local.in_flight_requests + local.queued_requests
    return replace(memory, presences=influx.note(memory.presences, requests, rate, now))


def _note_in_flight(
    signals: Signals, demand: Demand | None, ready: int, memory: Memory, now: float
) -> Memory:
    local, load = signals.local, None
    if demand is not None and ready and memory.pending_since is None:
        load = demand.present / ready / max(memory.capacity.most_at(now), 1e-9)
    requests = local.in_flight_requests + local.queued_requests
    noted = in_flight.note(memory.in_flight, requests, ready, load, now)
    return replace(memory, in_flight=noted)


def _look_ahead(demand: Demand | None, memory: Memory, now: float) -> tuple[Demand | None, Memory]:
    """Adds what is to come until a replica that is asked for now is ready."""
    if demand is None:
        return None, memory
    samples = note(memory.samples, max(0.0, demand.arriving), now, demand.requests)
    # A rate is that of half a window ago.
    ahead = rise_ahead(samples, demand.lead_seconds + SHORT_WINDOW_SECONDS / 2)
    return replace(demand, ahead=ahead), replace(memory, samples=samples)


def _note_miss(demand: Demand, ready: int, memory: Memory, now: float) -> Memory:
    """Notes at how much demand for each replica the SLO is missed, if that can be told.

    The highest demand of the last minutes counts: those whose answers are late now came then.
    """
    if not ready or memory.pending_since is not None:
        return memory
    if any(change.at > now - SETTLED_SECONDS for change in memory.changes):
        return memory
    each_has = _highest(demand, memory) / ready
    return replace(memory, capacity=note_miss(memory.capacity, each_has, now))


def _highest(demand: Demand | None, memory: Memory) -> float:
    now = 0.0 if demand is None else demand.present
    return max([now, *(sample.demand for sample in memory.samples)])


def _look_for_rest(
    signals: Signals, demand: Demand | None, lack: Unknown | None, memory: Memory, now: float
) -> Memory:
    """Since when nothing has arrived, waited or run, by Prometheus' word and by our own.

    A loss of the signals begins the time anew, and so does a replica that was never ready: what
    nobody could use has not been idle.
    """
    metrics, local = signals.metrics, signals.local
    if not isinstance(metrics, MetricSignals) or lack is not None or demand is None:
        return replace(memory, idle_since=None)
    rests = (
        demand.is_none
        and not any(r.running or r.waiting for r in metrics.replicas)
        and not metrics.queued_requests
        and not (local.queued_requests or local.in_flight_requests or local.unheard_balancers)
        and (metrics.short is None or metrics.short.all == 0)
        and local.ready_endpoints > 0
    )
    return replace(memory, idle_since=since(memory.idle_since, rests, now))
