"""Gathers what the conditions of a FastGenDeployment are judged by."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_operator.ailments import first_ailment, startup_failure, unschedulable
from fastgen_operator.children import Id
from fastgen_operator.delivery import Delivery
from fastgen_operator.foreign_scaler import scaler_problem
from fastgen_operator.observed import Observed, Problem, Replicas, deployment_of, is_ready
from fastgen_operator.owner import Owner
from fastgen_operator.progress import deadline, progress
from fastgen_operator.remedies import sentences
from fastgen_operator.rollout import RolloutDecision, RolloutState, rollout_state
from fastgen_operator.rollout_room import EXCEEDED_QUOTA, is_lack_of_room

FORBIDDEN_POD: Final = re.compile(r'^pods "[^"]*" is forbidden: ')
"""With a name that is another one at each try."""
ABOUT_CLAIMS: Final = re.compile(r"persistentvolumeclaim", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconcile knows beside what it observed."""

    failure: Problem | None = None
    """What kept the operator from applying the children."""
    hindrance: Problem | None = None
    """What keeps it from that for the time being; it tries again."""
    upgrade: str = ""
    """What the next edit brings besides itself; empty: nothing."""
    frozen: bool = False
    """Whether the fleet's freeze holds the autoscaler."""
    wakes: bool = False
    """Whether a request brings the first replica back."""
    delivery: Delivery | None = None
    """How far the model is, if that is known."""
    missing: tuple[Id, ...] = ()
    """Children that somebody has taken away from a paused deployment."""
    rollout: RolloutDecision = field(default_factory=RolloutDecision)
    broken_routes: Problem | None = None
    """Which of its routes lead nowhere."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the conditions are judged by."""

    replicas: Replicas
    balancer: Replicas
    progress: str
    """How far the pods of the first Deployment are that is not complete."""
    failure: Problem | None
    hindrance: Problem | None
    ailment: Problem | None
    """Why a pod of the latest form does not serve."""
    startup_failure: Problem | None
    """Why the model cannot be served, in a replica's own words."""
    unschedulable: Problem | None
    """Why no node takes a pod, when it is nodes that are amiss."""
    deadline: Problem | None
    """Why too long a time went by without progress."""
    upgrade: str
    paused: bool
    missing: tuple[Id, ...]
    frozen: bool
    wakes: bool
    delivery: Delivery | None
    rollout: RolloutDecision
    foreign_scaler: Problem | None
    """Whose autoscaler sets the replicas of one of the Deployments."""
    broken_routes: Problem | None
    applied: bool
    """Whether the children are those of the latest generation."""

    @property
    def is_complete(self) -> bool:
        """Whether every wanted pod runs the latest form and serves, and no other pod is left."""
        return self.replicas.complete and self.balancer.complete and self.undelivered is None

    @property
    def undelivered(self) -> Problem | None:
        """Why the spec's model is not there yet."""
        delivery = self.delivery
        if delivery is None or delivery.phase is None:
            return None
        return Problem(delivery.reason, delivery.message)

    @property
    def undeliverable(self) -> Problem | None:
        """Why the spec's model never comes, unless somebody does something."""
        return self.undelivered if self.delivery and self.delivery.is_failed else None


def situation_of(
    owner: Owner, observed: Observed, outcome: Outcome, applied: bool, now: datetime
) -> Situation:
    """Gathers what the conditions are judged by."""
    deployments = {each: deployment_of(observed, owner.name, each) for each in COMPONENTS}
    states = {each: rollout_state(deployments[each], observed, each, now) for each in COMPONENTS}
    replica, balancer = states[Component.REPLICA], states[Component.BALANCER]
    pods = [pod for each in states.values() for pod in each.latest if not _awaits_room(pod, each)]
    ailment = (
        first_ailment(pods, observed.warnings)
        or _uncreated(replica.replicas.failure)
        or _uncreated(balancer.replicas.failure)
    )
    unready = [pod for pod in replica.latest if not is_ready(pod)]
    words = {each: progress(each, states[each]) for each in COMPONENTS}
    late = (
        deadline(deployments[each], states[each], ailment.message if ailment else words[each], now)
        for each in COMPONENTS
    )
    is_awaited = outcome.delivery is not None and outcome.delivery.phase is not None
    incomplete = (words[each] for each in COMPONENTS if not states[each].replicas.complete)
    return Situation(
        replicas=replica.replicas,
        balancer=balancer.replicas,
        progress=next(incomplete, ""),
        failure=outcome.failure,
        hindrance=outcome.hindrance,
        ailment=ailment,
        startup_failure=next(filter(None, map(startup_failure, unready)), None),
        unschedulable=next(filter(None, map(_without_node, pods)), None),
        # Replicas that wait for a model are not late.
        deadline=None if is_awaited else next(filter(None, late), None),
        upgrade=outcome.upgrade,
        paused=owner.paused,
        missing=outcome.missing,
        frozen=outcome.frozen,
        wakes=outcome.wakes,
        delivery=outcome.delivery,
        rollout=outcome.rollout,
        foreign_scaler=scaler_problem(
            observed.scalers, owner.name, observed.balancer or owner.name
        ),
        broken_routes=outcome.broken_routes,
        applied=applied,
    )


COMPONENTS: Final = (Component.REPLICA, Component.BALANCER)


def _awaits_room(pod: KubernetesObject, state: RolloutState) -> bool:
    """Whether a pod waits for the room of one that is leaving, as it should."""
    return bool(state.leaving) and is_lack_of_room(pod)


def _without_node(pod: KubernetesObject) -> Problem | None:
    found = unschedulable(pod)
    return None if found is None or ABOUT_CLAIMS.search(found.message) else found


def _uncreated(failure: Problem | None) -> Problem | None:
    """Why pods cannot even be made."""
    if failure is None:
        return None
    is_quota = EXCEEDED_QUOTA.search(failure.message)
    remedy = "Raise the ResourceQuota, or ask for less in spec.resources" if is_quota else ""
    return Problem(failure.reason, sentences(FORBIDDEN_POD.sub("", failure.message), remedy))
