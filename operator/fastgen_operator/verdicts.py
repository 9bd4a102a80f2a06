"""Judges a FastGenDeployment: what its conditions say (kstatus: Ready, Reconciling, Stalled)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fastgen_api.delivery import ModelPhase
from fastgen_api.names import Condition
from fastgen_operator.observed import UNSCHEDULABLE, Problem
from fastgen_operator.pause import PAUSED, PAUSED_MESSAGE, paused_problem
from fastgen_operator.progress import IN_PROGRESS
from fastgen_operator.situation import Situation

AS_DECLARED: Final = "AsDeclared"
SCALED_TO_ZERO: Final = "ScaledToZero"
NONE_WANTED: Final = "no replicas are wanted"
ASLEEP: Final = "asleep: no replica runs, the next request waits for one and brings it up"
FROZEN: Final = "Frozen"
FROZEN_MESSAGE: Final = (
    "scaling is frozen for all deployments of this operator: its autoscaler decides and changes "
    "nothing; spec.replicas can be set by hand; the chart's value scaling.frozen ends it"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its time."""

    type: str
    status: bool | None
    """None: unknown."""
    reason: str
    message: str


def verdicts(situation: Situation) -> Iterator[Verdict]:
    """The operator's conditions; the optional ones only where they hold."""
    problem = _problem(situation)
    yield _ready(situation, problem)
    yield _reconciling(situation, problem)
    yield _stalled(situation)
    yield _available(situation)
    yield _model_ready(situation)
    if situation.rollout.blocked:
        found = situation.rollout.blocked
        yield Verdict(Condition.ROLLOUT_BLOCKED, True, found.reason, found.message)
    if situation.unschedulable:
        found = situation.unschedulable
        yield Verdict(Condition.CAPACITY_BLOCKED, True, found.reason, found.message)
    if situation.broken_routes:
        found = situation.broken_routes
        yield Verdict(Condition.ROUTE_BLOCKED, True, found.reason, found.message)
    if situation.upgrade:
        yield Verdict(Condition.UPGRADE_AVAILABLE, True, "OperatorUpgraded", situation.upgrade)
    if situation.frozen:
        yield Verdict(Condition.SCALING_FROZEN, True, FROZEN, FROZEN_MESSAGE)
    if situation.foreign_scaler:
        found = situation.foreign_scaler
        yield Verdict(Condition.FOREIGN_SCALER, True, found.reason, found.message)


def phase(situation: Situation) -> str:
    """How far the model is on its way to the replicas."""
    if situation.undelivered and situation.delivery and situation.delivery.phase:
        return situation.delivery.phase
    if situation.startup_failure:
        return ModelPhase.FAILED
    if situation.replicas.ready:
        return ModelPhase.READY
    return ModelPhase.LOADING if situation.replicas.existing else ModelPhase.PENDING


def _problem(situation: Situation) -> Problem | None:
    """Why the deployment is not as declared: the most telling reason first."""
    if situation.failure:
        return situation.failure
    if situation.paused and (situation.missing or not situation.applied):
        return paused_problem(situation.missing)
    if situation.hindrance:
        return situation.hindrance
    if situation.is_complete:
        return None
    if situation.undelivered:
        return situation.undelivered
    ailment, rollout = situation.ailment, situation.rollout
    if ailment and ailment.reason != UNSCHEDULABLE:
        return ailment
    if rollout.blocked and not rollout.detour:
        return rollout.blocked
    found = ailment or situation.deadline
    if found:
        return found
    if situation.paused:
        return paused_problem()
    return Problem(IN_PROGRESS, situation.progress)


def _ready(situation: Situation, problem: Problem | None) -> Verdict:
    if problem:
        return Verdict(Condition.READY, False, problem.reason, problem.message)
    if situation.replicas.wanted == 0:
        return Verdict(Condition.READY, True, SCALED_TO_ZERO, _why_none(situation))
    count = situation.replicas.wanted
    message = "1 replica serves the model" if count == 1 else f"{count} replicas serve the model"
    return Verdict(Condition.READY, True, AS_DECLARED, message)


def _why_none(situation: Situation) -> str:
    return ASLEEP if situation.wakes else NONE_WANTED


def _reconciling(situation: Situation, problem: Problem | None) -> Verdict:
    """By kstatus a resource is done when nothing reconciles or stalls: Ready itself is not asked.

    Of a paused edit the generation tells that it is not.
    """
    stuck = situation.failure or situation.deadline or situation.undeliverable
    if situation.paused:
        is_awaited = problem is not None and not stuck and situation.applied
        return Verdict(Condition.RECONCILING, is_awaited, PAUSED, PAUSED_MESSAGE)
    if problem is None or stuck:
        return Verdict(Condition.RECONCILING, False, "Done", "nothing is under way")
    return Verdict(Condition.RECONCILING, True, problem.reason, problem.message)


def _stalled(situation: Situation) -> Verdict:
    problem = situation.failure or situation.undeliverable
    if problem is None and not situation.is_complete:
        problem = situation.deadline
    if problem:
        return Verdict(Condition.STALLED, True, problem.reason, problem.message)
    return Verdict(Condition.STALLED, False, "NotStalled", "nothing is stuck for good")


def _available(situation: Situation) -> Verdict:
    kind = Condition.AVAILABLE
    if situation.replicas.wanted == 0 and not situation.undelivered:
        return Verdict(kind, False, SCALED_TO_ZERO, _why_none(situation))
    if not situation.replicas.ready:
        return Verdict(kind, False, "NoReplicaReady", "no replica takes requests")
    if not situation.balancer.ready:
        return Verdict(kind, False, "NoBalancerReady", "no balancer pod takes requests")
    return Verdict(kind, True, "Serving", "at least one replica and one balancer pod are ready")


def _model_ready(situation: Situation) -> Verdict:
    kind = Condition.MODEL_READY
    if situation.undelivered:
        found = situation.undelivered
        return Verdict(kind, False, found.reason, found.message)
    if situation.startup_failure:
        found = situation.startup_failure
        return Verdict(kind, False, found.reason, found.message)
    if situation.replicas.ready:
        return Verdict(kind, True, "Loaded", "a replica serves the model")
    if situation.replicas.wanted == 0:
        return Verdict(kind, None, SCALED_TO_ZERO, "no replica has loaded the model")
    return Verdict(kind, None, "Loading", "no replica has loaded the model yet")
