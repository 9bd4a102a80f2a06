"""What a leader carries from tick to tick, and takes over from the one before."""

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from fastgen_api.spec import ScalingMode
from fastgen_balancer.decision import Memory, Recommendation, start
from fastgen_balancer.deployment_access import Deployment
from fastgen_balancer.deployment_status import ReportMemory, note
from fastgen_balancer.memo import read, recall
from fastgen_balancer.restraint import Restraint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """What the leader carries from tick to tick."""

    memory: Memory
    report: ReportMemory
    mode: ScalingMode
    restraint: Restraint | None = None


def begin(deployment: Deployment, memo: str, now: float, decided_at: float | None = None) -> State:
    """A new leader's state: what the last one remembered, or at least what it told last.

    `decided_at`: when that one has decided last.
    """
    left, mode = read(memo), deployment.spec.scaling.mode
    if left is not None and left.mode is mode:
        return State(recall(left, decided_at), ReportMemory(stance_since=now), mode)
    if memo and left is None:
        log.warning("what the last leader remembered cannot be read; windows begin anew")
    changed_at = None
    if isinstance(told := (deployment.status.get("lastDecision") or {}).get("time"), str):
        changed_at = min(now, datetime.fromisoformat(told).timestamp())
    memory = start(deployment.spec.replicas, now, changed_at)
    if left is not None:
        memory = _known_from(left.memory, memory)
    return State(memory, ReportMemory(stance_since=now), mode)


def begin_again(state: State, deployment: Deployment, now: float) -> State:
    """The state after another mode: what is known of capacity and changes stays."""
    memory = _known_from(state.memory, start(deployment.spec.replicas, now))
    return State(memory, ReportMemory(stance_since=now), deployment.spec.scaling.mode)


def _known_from(old: Memory, fresh: Memory) -> Memory:
    """A new memory with what the old one knows whatever the mode is."""
    return replace(
        fresh,
        capacity=old.capacity,
        capacity_key=old.capacity_key,
        capacities=old.capacities,
        request_work=old.request_work,
        changes=old.changes or fresh.changes,
        reversals=old.reversals,
    )


def after(
    state: State,
    memory: Memory,
    decision: Recommendation,
    restraint: Restraint | None,
    now: float,
) -> State:
    """The state after a decision; a restraint that came or went is told at once."""
    report = note(state.report, decision, now)
    if restraint != state.restraint:
        report = replace(report, written_at=None)
    return replace(state, memory=memory, report=report, restraint=restraint)
