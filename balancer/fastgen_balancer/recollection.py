"""What is remembered from one decision to the next, whoever makes them and whatever clocks do."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Final

from fastgen_balancer import in_flight, supply
from fastgen_balancer.behavior import Change
from fastgen_balancer.capacity import Capacity
from fastgen_balancer.decision import Memory
from fastgen_balancer.scaling_policy import SHORT_WINDOW_SECONDS, Policy
from fastgen_balancer.signals import Signals

KEPT_SECONDS: Final = 3600.0
"""Changes of the last hour: twice the longest periodSeconds of autoscaling/v2."""
MOST_CHANGES: Final = 64
MOST_CAPACITIES: Final = 8
LOST_SECONDS: Final = 2 * 3600.0
"""A replica that was lost may be lost again for so long."""
GAP_SECONDS: Final = 30.0
"""A shorter loss of the metrics, or of the leader, is none."""


def observe(signals: Signals, policy: Policy, memory: Memory, now: float) -> Memory:
    """Keeps track of what changed since the last decision, whoever changed it."""
    memory = _in_step(memory, now)
    current, local = signals.replicas, signals.local
    delta = 0 if memory.replicas is None else current - memory.replicas
    pending, full = memory.pending_since, memory.full_since
    if local.ready_endpoints < current:
        pending, full = now if pending is None or delta > 0 else pending, None
    elif pending is not None:
        full = now if full is None else full
        if now - full >= SHORT_WINDOW_SECONDS:
            pending, full = None, None
    # What was decided was written then; what somebody else wrote is as young as can be.
    when = memory.at if memory.decided == current and memory.at is not None else now
    memory = _changed(_keyed(memory, policy), delta, when, now)
    saturated = 0 < local.ready_endpoints <= local.saturated_endpoints
    return replace(
        memory,
        at=now,
        replicas=current,
        ready=local.ready_endpoints,
        waiting=supply.note(
            memory.waiting,
            signals.capacity_blocked,
            local.ready_endpoints < current,
            memory.ready is not None and local.ready_endpoints > memory.ready,
            now,
        ),
        lost_at=_lost(memory, current, local.ready_endpoints, now),
        pending_since=pending,
        full_since=full,
        queued_since=since(memory.queued_since, local.queued_requests > 0, now),
        saturated_since=since(memory.saturated_since, saturated, now),
    )


def since(begun: float | None, holds: bool, now: float) -> float | None:
    """Since when something holds."""
    if not holds:
        return None
    return now if begun is None else begun


def turns(changes: tuple[Change, ...], begin: float) -> int:
    """How often the number turned from up to down or back, from `begin` on."""
    known = [change for change in changes if change.delta]
    return sum(
        (before.delta or 0) * (after.delta or 0) < 0 and after.at > begin
        for before, after in pairwise(known)
    )


def _lost(memory: Memory, current: int, ready: int, now: float) -> float | None:
    """When a replica was lost last; what was scaled down is no loss."""
    if memory.ready is not None and ready < min(memory.ready, current):
        return now
    known = memory.lost_at
    return None if known is None or now - known > LOST_SECONDS else known


def _in_step(memory: Memory, now: float) -> Memory:
    """The memory by a clock that has jumped, or after a time without decisions.

    What was remembered grows no older meanwhile, or by a gap at most: nobody saw the load.
    """
    if memory.at is None or 0 <= now - memory.at <= GAP_SECONDS:
        return memory
    jump = now - memory.at
    jump -= GAP_SECONDS if jump > 0 else 0.0

    def moved(at: float | None) -> float | None:
        return None if at is None else at + jump

    return replace(
        memory,
        wishes=tuple(replace(each, at=each.at + jump) for each in memory.wishes),
        changes=tuple(replace(each, at=each.at + jump) for each in memory.changes),
        samples=(),
        presences=(),
        pending_since=moved(memory.pending_since),
        full_since=moved(memory.full_since),
        queued_since=None,
        saturated_since=None,
        missed_since=None,
        idle_since=None,
        known_at=moved(memory.known_at),
        lost_at=moved(memory.lost_at),
        waiting=supply.moved(memory.waiting, jump),
        in_flight=in_flight.moved(memory.in_flight, jump),
    )


def _keyed(memory: Memory, policy: Policy) -> Memory:
    """With what is known of replicas as they are configured now, if that was ever learned."""
    if memory.capacity_key == policy.capacity_key:
        return memory
    others = dict(memory.capacities)
    if memory.capacity != Capacity():
        others = {memory.capacity_key: memory.capacity} | {
            key: value for key, value in others.items() if key != memory.capacity_key
        }
    capacity = others.pop(policy.capacity_key, Capacity())
    return replace(
        memory,
        capacity=capacity,
        capacity_key=policy.capacity_key,
        capacities=tuple(others.items())[:MOST_CAPACITIES],
    )


def _changed(memory: Memory, delta: int, when: float, now: float) -> Memory:
    changes = tuple(change for change in memory.changes if change.at > now - KEPT_SECONDS)
    if not delta:
        return replace(memory, changes=changes)
    before = turns(changes, -inf)
    changes = (*changes, Change(when, delta))
    turned = turns(changes, -inf) - before
    if len(changes) > MOST_CHANGES:
        changes = _merged(changes)
    return replace(memory, changes=changes, reversals=memory.reversals + turned)


def _merged(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """With the two oldest as one: a policy then counts no less than it should."""
    first, second, *rest = changes
    known = first.delta is not None and second.delta is not None
    delta = (first.delta or 0) + (second.delta or 0) if known else None
    return (Change(second.at, delta), *rest)
