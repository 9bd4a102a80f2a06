"""Judges a FastGenDeployment: what its conditions say (kstatus: Ready, Reconciling, Stalled)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Condition
from fastgen_operator.ailments import first_ailment, startup_failure, unschedulable
from fastgen_operator.foreign_scaler import scaler_problem
from fastgen_operator.observed import (
    Observed,
    Problem,
    Replicas,
    deployment_of,
    is_ready,
    pods_of,
    replicas_of,
)
from fastgen_operator.owner import Owner

PAUSED: Final = "Paused"
AS_DECLARED: Final = "AsDeclared"
SCALED_TO_ZERO: Final = "ScaledToZero"
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


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the conditions are judged by."""

    replicas: Replicas
    balancer: Replicas
    failure: Problem | None
    """What kept the operator from applying the children."""
    ailment: Problem | None
    """Why a pod does not serve."""
    startup_failure: Problem | None
    """Why the model cannot be served, in a replica's own words."""
    unschedulable: Problem | None
    upgrade: str
    """What the next edit brings besides itself; empty: nothing."""
    paused: bool
    frozen: bool
    """Whether the fleet's freeze holds the autoscaler."""
    foreign_scaler: Problem | None
    """Whose autoscaler sets the replicas of one of the Deployments."""
    applied: bool
    """Whether the children are those of the latest generation."""

    @property
    def deadline(self) -> Problem | None:
        """Why too long a time went by without progress."""
        found = self.replicas.deadline or self.balancer.deadline
        if found and self.ailment:
            return Problem(found.reason, f"{found.message} {self.ailment.message}")
        return found


def situation_of(
    owner: Owner,
    observed: Observed,
    failure: Problem | None,
    upgrade: str,
    applied: bool,
    frozen: bool = False,
) -> Situation:
    """Gathers what the conditions are judged by."""
    replica_pods = pods_of(observed, Component.REPLICA)
    all_pods = (*replica_pods, *pods_of(observed, Component.BALANCER))
    replicas = replicas_of(deployment_of(observed, owner.name, Component.REPLICA))
    balancer = replicas_of(deployment_of(observed, owner.name, Component.BALANCER))
    unready = [pod for pod in replica_pods if not is_ready(pod)]
    return Situation(
        replicas=replicas,
        balancer=balancer,
        failure=failure,
        ailment=first_ailment(all_pods) or replicas.failure or balancer.failure,
        startup_failure=next(filter(None, map(startup_failure, unready)), None),
        unschedulable=next(filter(None, map(unschedulable, all_pods)), None),
        upgrade=upgrade,
        paused=owner.paused,
        frozen=frozen,
        foreign_scaler=scaler_problem(observed.scalers, owner.name),
        applied=applied,
    )


def verdicts(situation: Situation) -> Iterator[Verdict]:
    """The operator's conditions; the optional ones only where they hold."""
    problem = _problem(situation)
    yield _ready(situation, problem)
    yield _reconciling(situation, problem)
    yield _stalled(situation)
    yield _available(situation)
    yield _model_ready(situation)
    if situation.unschedulable:
        found = situation.unschedulable
        yield Verdict(Condition.CAPACITY_BLOCKED, True, found.reason, found.message)
    if situation.upgrade:
        yield Verdict(Condition.UPGRADE_AVAILABLE, True, "OperatorUpgraded", situation.upgrade)
    if situation.frozen:
        yield Verdict(Condition.SCALING_FROZEN, True, FROZEN, FROZEN_MESSAGE)
    if situation.foreign_scaler:
        found = situation.foreign_scaler
        yield Verdict(Condition.FOREIGN_SCALER, True, found.reason, found.message)


def phase(situation: Situation) -> str:
    """How far the model is on its way to the replicas."""
    if situation.startup_failure:
        return "Failed"
    if situation.replicas.ready:
        return "Ready"
    return "Loading" if situation.replicas.existing else "Pending"


def _problem(situation: Situation) -> Problem | None:
    """Why the deployment is not as declared: the most telling reason first."""
    if situation.failure:
        return situation.failure
    if situation.paused and not situation.applied:
        return Problem(PAUSED, _paused_message())
    if situation.replicas.complete and situation.balancer.complete:
        return None
    if situation.ailment:
        return situation.ailment
    if situation.deadline:
        return situation.deadline
    if situation.paused:
        return Problem(PAUSED, _paused_message())
    for name, replicas in (("replicas", situation.replicas), ("balancer", situation.balancer)):
        if not replicas.complete:
            return Problem("RolloutInProgress", f"{name}: {_progress(replicas)}")
    return None


def _progress(replicas: Replicas) -> str:
    if not replicas.is_current:
        return f"{replicas.wanted} wanted, not started"
    surplus = replicas.existing - replicas.updated
    old = f", {surplus} of an earlier form left" if surplus > 0 else ""
    return f"{replicas.available} of {replicas.wanted} available, {replicas.updated} updated{old}"


def _paused_message() -> str:
    return f"nothing is reconciled: remove the annotation {names.PAUSED_ANNOTATION}"


def _ready(situation: Situation, problem: Problem | None) -> Verdict:
    if problem:
        return Verdict(Condition.READY, False, problem.reason, problem.message)
    if situation.replicas.wanted == 0:
        return Verdict(Condition.READY, True, SCALED_TO_ZERO, "no replicas are wanted")
    message = f"{situation.replicas.wanted} replicas serve the model"
    return Verdict(Condition.READY, True, AS_DECLARED, message)


def _reconciling(situation: Situation, problem: Problem | None) -> Verdict:
    if situation.paused:
        return Verdict(Condition.RECONCILING, False, PAUSED, _paused_message())
    if problem is None or situation.failure or situation.deadline:
        return Verdict(Condition.RECONCILING, False, "Done", "")
    return Verdict(Condition.RECONCILING, True, problem.reason, problem.message)


def _stalled(situation: Situation) -> Verdict:
    complete = situation.replicas.complete and situation.balancer.complete
    problem = situation.failure or (None if complete else situation.deadline)
    if problem:
        return Verdict(Condition.STALLED, True, problem.reason, problem.message)
    return Verdict(Condition.STALLED, False, "NotStalled", "")


def _available(situation: Situation) -> Verdict:
    kind = Condition.AVAILABLE
    if situation.replicas.wanted == 0:
        return Verdict(kind, False, SCALED_TO_ZERO, "no replicas are wanted")
    if not situation.replicas.ready:
        return Verdict(kind, False, "NoReplicaReady", "no replica takes requests")
    if not situation.balancer.ready:
        return Verdict(kind, False, "NoBalancerReady", "no balancer pod takes requests")
    return Verdict(kind, True, "Serving", "at least one replica and one balancer pod are ready")


def _model_ready(situation: Situation) -> Verdict:
    kind = Condition.MODEL_READY
    if situation.startup_failure:
        found = situation.startup_failure
        return Verdict(kind, False, found.reason, found.message)
    if situation.replicas.ready:
        return Verdict(kind, True, "Loaded", "a replica serves the model")
    if situation.replicas.wanted == 0:
        return Verdict(kind, None, SCALED_TO_ZERO, "no replica has loaded the model")
    return Verdict(kind, None, "Loading", "no replica has loaded the model yet")
