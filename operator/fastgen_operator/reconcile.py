"""Brings one FastGenDeployment's children and status to what its spec says."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from fastgen_api.names import Component
from fastgen_api.scaling import wakes
from fastgen_api.spec import KubernetesObject, Rollout, Spec
from fastgen_operator.applying import APPLY_REJECTED, Applier, Memory, Result
from fastgen_operator.asking import with_claim, with_warnings
from fastgen_operator.balancer_applying import BalancerApplier
from fastgen_operator.children import Id, id_of, make_children
from fastgen_operator.claim_access import claim_failure
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.delivery import Delivery
from fastgen_operator.delivery_state import delivery_of
from fastgen_operator.internal_error import CRASHES_TO_TELL, tell_internal_error
from fastgen_operator.kinds import is_of_balancer
from fastgen_operator.merge import TemplateError
from fastgen_operator.observed import Observed, Problem, deployment_of
from fastgen_operator.obsolete import obsolete_conditions
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.party import Party, Surroundings
from fastgen_operator.pause import missing_children
from fastgen_operator.queue import Key
from fastgen_operator.rollout import RolloutDecision, decide_rollout, rollout_state
from fastgen_operator.settings import Settings
from fastgen_operator.situation import Outcome
from fastgen_operator.spec_reading import read_spec
from fastgen_operator.status import (
    OUR_CONDITIONS,
    Notice,
    is_frozen,
    notices_of,
    same_status,
    status_of,
)
from fastgen_operator.template_trial import POD_TEMPLATE_REJECTED
from fastgen_operator.unsettled import RejectedError, UnsettledError

WAITING_FOR_DELETION: Final = "WaitingForDeletion"
API_SERVER_ERROR: Final = "APIServerError"
ERRORS_TO_TELL: Final = 3
"""So many failures in a row are no passing trouble of the API server."""
REJECTED: Final = (APPLY_REJECTED, POD_TEMPLATE_REJECTED)
"""What the API server refused: another time it may not, so it is tried again."""

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles by key; the same key never twice at a time (the queue sees to it)."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._applier = Applier(cluster, settings, clock)
        self._balancers = BalancerApplier(cluster, settings, self._applier)
        self._memories: dict[Key, Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """parse, observe, make, apply, prune, report.

        Returns the seconds after which time alone may have changed something; None: it cannot.
        Raises ClusterError when the API server fails, UnsettledError when more is to do later.
        """
        try:
            again = await self._settle(key)
        except (ClusterError, UnsettledError, TimeoutError):
            raise
        except Exception as error:
            memory = self._memories.setdefault(key, Memory())
            memory.crashes += 1
            resource = self._cluster.resource(key)
            if resource is not None and memory.crashes >= CRASHES_TO_TELL:
                await tell_internal_error(self._cluster, resource, error, self._clock())
            raise
        if remembered := self._memories.get(key):
            remembered.crashes = 0
        return again

    async def _settle(self, key: Key) -> float | None:
        resource = self._cluster.resource(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._memories.pop(key, None)  # The garbage collector takes the children.
            return None
        owner = owner_of(resource)
        memory = self._memories.setdefault(key, Memory())
        observed, warned_again = await with_warnings(
            self._cluster, self._cluster.observe(owner), self._clock()
        )
        spec = read_spec(resource["spec"])
        trouble: Exception | None = None
        if owner.paused:
            result = self._while_paused(owner, spec, resource, observed)
        elif isinstance(spec, Problem):
            result = Result(observed, spec)
        else:
            result, trouble = await self._try_spec(owner, spec, resource, observed, memory)
        rollout = Rollout() if isinstance(spec, Problem) else spec.rollout
        course = self._course(owner, rollout, result.observed, memory)
        frozen = is_frozen(resource["spec"], self._settings)
        outcome = Outcome(
            result.failure,
            result.hindrance,
            result.upgrade,
            frozen,
            wakes=not isinstance(spec, Problem) and wakes(spec),
            delivery=result.delivery,
            missing=result.missing,
            rollout=course,
            broken_routes=result.broken_routes,
        )
        await self._report(owner, resource, result, memory, outcome)
        if trouble:
            raise trouble
        if result.failure and result.failure.reason in REJECTED:
            raise RejectedError(result.failure.message)
        delivered_again = result.delivery.again if result.delivery else None
        again = (course.again, warned_again, result.again, delivered_again)
        times = [each for each in again if each is not None]
        return min(times).total_seconds() if times else None

    def _course(
        self, owner: Owner, rollout: Rollout, observed: Observed, memory: Memory
    ) -> RolloutDecision:
        """How the replicas' rollout goes on."""
        now = self._clock()
        deployment = deployment_of(observed, owner.name, Component.REPLICA)
        state = rollout_state(deployment, observed, Component.REPLICA, now)
        decision = decide_rollout(rollout, state, memory.waiting_since, now)
        memory.waiting_since = decision.waiting_since
        return decision

    async def _try_spec(
        self,
        owner: Owner,
        spec: Spec,
        resource: KubernetesObject,
        observed: Observed,
        memory: Memory,
    ) -> tuple[Result, Exception | None]:
        """Applies the spec; what hinders that is told, and raised once it has been."""
        try:
            result = await self._apply_spec(owner, spec, resource, observed, memory)
        except UnsettledError as error:
            return Result(observed, hindrance=Problem(WAITING_FOR_DELETION, str(error))), error
        except ClusterError as error:
            memory.errors += 1
            # One refused or lost request is no news, and a lost one could not be told anyway.
            if error.is_namespace_terminating or memory.errors < ERRORS_TO_TELL:
                raise
            words = f"the API server does not take the change, which is tried again: {error}"
            return Result(observed, hindrance=Problem(API_SERVER_ERROR, words)), error
        memory.errors = 0
        return result, None

    async def _apply_spec(
        self,
        owner: Owner,
        spec: Spec,
        resource: KubernetesObject,
        observed: Observed,
        memory: Memory,
    ) -> Result:
        standing = self._balancers.standing(owner, resource)
        if standing.exclusion:
            return Result(observed, standing.exclusion, broken_routes=standing.broken_routes)
        observed = await with_claim(self._cluster, owner, spec, observed)
        around = standing.surroundings
        delivery, children = self._declared(owner, spec, resource, observed, around)
        if isinstance(children, Problem):
            return Result(observed, children, delivery=delivery)
        if around.party.is_shared:
            shared = await self._balancers.apply(owner, resource, memory)
            if shared.failure:
                return replace(shared, delivery=delivery)
            observed = replace(observed, children=shared.observed.children)
        else:
            shared = Result(observed)
        result = await self._apply_declared(
            owner, spec, around.party, children, delivery, observed, memory
        )
        failure = result.failure or standing.complaint or claim_failure(owner, spec, delivery)
        return replace(
            result,
            delivery=delivery,
            failure=failure,
            upgrade=result.upgrade or shared.upgrade,
            broken_routes=standing.broken_routes,
        )

    def _while_paused(
        self, owner: Owner, spec: Spec | Problem, resource: KubernetesObject, observed: Observed
    ) -> Result:
        """What a paused deployment lacks of what would be made, and which routes lead nowhere."""
        if isinstance(spec, Problem):
            return Result(observed)
        standing = self._balancers.standing(owner, resource)
        missing: tuple[Id, ...] = ()
        if not standing.exclusion:
            _, children = self._declared(owner, spec, resource, observed, standing.surroundings)
            missing = () if isinstance(children, Problem) else missing_children(children, observed)
        return Result(observed, missing=missing, broken_routes=standing.broken_routes)

    def _declared(
        self,
        owner: Owner,
        spec: Spec,
        resource: KubernetesObject,
        observed: Observed,
        around: Surroundings,
    ) -> tuple[Delivery, tuple[KubernetesObject, ...] | Problem]:
        """How far the model is, and the children that the spec asks for meanwhile."""
        previous = resource.get("status") or {}
        delivery = delivery_of(owner, spec, self._settings, observed, previous, self._clock())
        served = observed.served
        return delivery, declared_children(owner, spec, self._settings, delivery, served, around)

    async def _apply_declared(
        self,
        owner: Owner,
        spec: Spec,
        party: Party,
        children: tuple[KubernetesObject, ...],
        delivery: Delivery,
        observed: Observed,
        memory: Memory,
    ) -> Result:
        """Applies the children, those of a shared balancer apart, and takes away what is none."""
        own = tuple(
            each for each in children if not (party.is_shared and is_of_balancer(each, party.name))
        )
        current = await self._applier.claimed(owner, party, own, observed)
        if isinstance(current, Problem):
            return Result(observed, current)
        if refused := await self._applier.try_template(owner, spec, delivery, observed, memory):
            return Result(observed, refused)
        course = self._course(owner, spec.rollout, observed, memory)
        result = await self._applier.apply_children(owner, own, current, observed, memory, course)
        if result.failure is None:
            wanted = {id_of(each) for each in children} | delivery.kept
            await self._applier.prune(owner, wanted, observed)
        return result

    async def _report(
        self,
        owner: Owner,
        resource: KubernetesObject,
        result: Result,
        memory: Memory,
        outcome: Outcome,
    ) -> None:
        now = self._clock()
        previous = resource.get("status") or {}
        status = status_of(owner, result.observed, now, previous, outcome)
        obsolete = obsolete_conditions(resource, OUR_CONDITIONS)
        if same_status(status, previous) and not obsolete:
            return
        await self._cluster.apply_status(owner, status)
        for notice in notices_of(previous, status, result.created):
            if memory.may_tell(notice, owner.generation, now):
                await self._tell(owner, notice, now)

    async def _tell(self, owner: Owner, notice: Notice, now: datetime) -> None:
        try:
            await self._cluster.tell(owner, notice, now, self._settings.identity)
        except ClusterError as error:  # The conditions say the same.
            log.warning("an event was not written", extra={"why": str(error)})


def declared_children(
    owner: Owner,
    spec: Spec,
    settings: Settings,
    delivery: Delivery | None = None,
    served: Collection[str] = (),
    surroundings: Surroundings | None = None,
) -> tuple[KubernetesObject, ...] | Problem:
    """The children of a spec, or what is wrong with the spec."""
    try:
        return make_children(owner, spec, settings, delivery, served, surroundings)
    except TemplateError as error:
        return Problem(error.reason, str(error))
