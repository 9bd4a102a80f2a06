"""How many replicas there should be."""

from dataclasses import replace
from typing import Final

from fastgen_balancer import behavior
from fastgen_balancer.behavior import Change
from fastgen_balancer.capacity import (
    Capacity,
    Judgement,
    Verdict,
    fresh,
    judge,
    learn,
    saturated_fleet,
)
from fastgen_balancer.decision import Blocker, Memory, Recommendation, Rule, Sight, Wish
from fastgen_balancer.demand import demand_of
from fastgen_balancer.rules import wish_for
from fastgen_balancer.scaling_policy import SHORT_WINDOW_SECONDS, Policy
from fastgen_balancer.signals import Signals, Unknown

LONGEST_PERIOD_SECONDS: Final = 1800.0
"""The longest periodSeconds that autoscaling/v2 allows."""
GAP_SECONDS: Final = 30.0
"""A shorter loss of the metrics does not count as a wish to stay."""


def recommend(
    signals: Signals, policy: Policy, memory: Memory, now: float
) -> tuple[Recommendation, Memory]:
    """Decides; `now` is in seconds of the clock that the memory was made with."""
    memory = _observe(signals, policy, memory, now)
    sight, memory = _look(signals, policy, memory, now)
    wish = wish_for(sight, policy)
    if wish.rule in (Rule.BELOW_MINIMUM, Rule.ABOVE_MAXIMUM):
        return wish, _remember(memory, wish, policy, now)
    wish = _bounded(wish, policy)
    return _paced(wish, signals.replicas, policy, memory, now), _remember(memory, wish, policy, now)


def _observe(signals: Signals, policy: Policy, memory: Memory, now: float) -> Memory:
    """Keeps track of what changed since the last decision, whoever changed it."""
    current, local = signals.replicas, signals.local
    delta = 0 if memory.replicas is None else current - memory.replicas
    changes = tuple(c for c in memory.changes if c.at > now - LONGEST_PERIOD_SECONDS)
    pending, full = memory.pending_since, memory.full_since
    if local.ready_endpoints < current:
        pending, full = now if pending is None or delta > 0 else pending, None
    elif pending is not None:
        full = now if full is None else full
        if now - full >= SHORT_WINDOW_SECONDS:
            pending, full = None, None
    same = memory.capacity_key == policy.capacity_key
    return replace(
        memory,
        capacity=memory.capacity if same else Capacity(),
        capacity_key=policy.capacity_key,
        changes=(*changes, Change(now, delta)) if delta else changes,
        replicas=current,
        pending_since=pending,
        full_since=full,
        queued_since=_since(memory.queued_since, local.queued_requests > 0, now),
        saturated_since=_since(
            memory.saturated_since, 0 < local.ready_endpoints <= local.saturated_endpoints, now
        ),
    )


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _look(signals: Signals, policy: Policy, memory: Memory, now: float) -> tuple[Sight, Memory]:
    """Reads the signals, and learns from them what a replica carries."""
    metrics = signals.metrics
    judgement, demand = Judgement(Verdict.UNKNOWN), None
    readings = () if isinstance(metrics, Unknown) else fresh(metrics, policy)
    saturated = saturated_fleet(signals.local, metrics, readings, policy)
    missed_long = False
    if not isinstance(metrics, Unknown) and readings:
        judgement, demand = (
            judge(metrics, policy),
            demand_of(metrics, readings, policy.lead_seconds),
        )
        missed = judgement.verdict is Verdict.MISSED and not saturated
        missed_since = _since(memory.missed_since, missed, now)
        missed_long = missed_since is not None and now - missed_since > SHORT_WINDOW_SECONDS
        capacity = learn(memory.capacity, readings, judgement, policy, missed_long, now)
        memory = replace(memory, capacity=capacity, missed_since=missed_since, known_at=now)
    ready = min(signals.local.ready_endpoints, signals.replicas)
    pending_since = memory.pending_since

    def lasted(since: float | None, seconds: float) -> bool:
        return since is not None and now - since >= seconds

    sight = Sight(
        replicas=signals.replicas,
        ready=ready,
        pending=pending_since is not None,
        stuck=ready < signals.replicas and lasted(pending_since, policy.pending_seconds),
        local=signals.local,
        saturated=saturated,
        missed_long=missed_long,
        queue_stands=lasted(memory.queued_since, policy.queue_seconds),
        endpoints_stay_saturated=lasted(memory.saturated_since, policy.saturated_seconds),
        metrics=metrics,
        readings=readings,
        judgement=judgement,
        demand=demand,
        carried=memory.capacity.carried_at(now),
        overload=memory.capacity.overload_at(now),
    )
    return sight, memory


def _bounded(wish: Wish, policy: Policy) -> Wish:
    if wish.replicas > policy.max_replicas:
        text = f"{wish.message}; maxReplicas is {policy.max_replicas}"
        blockers = (*wish.blockers, Blocker.MAX_REPLICAS)
        return Wish(policy.max_replicas, wish.rule, text, blockers)
    return replace(wish, replicas=max(wish.replicas, policy.min_replicas))


def _paced(wish: Wish, current: int, policy: Policy, memory: Memory, now: float) -> Recommendation:
    """Applies the stabilisation windows and the policies of `spec.scaling.behavior`."""
    up, down = policy.scale_up, policy.scale_down
    steady = behavior.stabilise(current, wish.replicas, memory.wishes, up, down, now)
    blockers, text = wish.blockers, wish.message
    if steady != wish.replicas:
        blockers = (*blockers, Blocker.STABILIZATION_WINDOW)
        window = (up if wish.replicas > current else down).stabilization_window_seconds
        text = f"{text}; {wish.replicas} must do for {window} s first"
    highest = behavior.up_limit(current, memory.changes, up, now)
    lowest = behavior.down_limit(current, memory.changes, down, now)
    replicas = max(lowest, min(highest, steady))
    if replicas != steady:
        blockers = (*blockers, Blocker.SCALING_POLICY)
        text = f"{text}; the scaling policies allow {replicas} now"
    return Recommendation(replicas, wish.rule, text, blockers)


def _remember(memory: Memory, wish: Wish, policy: Policy, now: float) -> Memory:
    known = memory.known_at
    if wish.rule is Rule.NO_SIGNAL and known is not None and now - known < GAP_SECONDS:
        return memory
    windows = (r.stabilization_window_seconds for r in (policy.scale_up, policy.scale_down))
    keep = max(1, *windows)
    return replace(memory, wishes=behavior.remember(memory.wishes, wish.replicas, now, keep))
