"""Brings one FastGenDeployment's children and status to what its spec says."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Rollout, Spec, wakes
from fastgen_operator.applying import APPLY_REJECTED, Applier, Memory, Result
from fastgen_operator.children import Id, id_of, make_children
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.delivery import Delivery, foreign_claim_name
from fastgen_operator.delivery_seen import CLAIM
from fastgen_operator.delivery_state import delivery_of
from fastgen_operator.internal_error import CRASHES_TO_TELL, tell_internal_error
from fastgen_operator.kinds import is_object_name
from fastgen_operator.merge import TemplateError
from fastgen_operator.mounts import mount_warning, pods_to_ask_about
from fastgen_operator.observed import Observed, Problem, deployment_of
from fastgen_operator.obsolete import obsolete_conditions
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.ownership import Ownership, conflict, ownership_of
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

CLAIM_IMMUTABLE: Final = "ClaimImmutable"
WAITING_FOR_DELETION: Final = "WaitingForDeletion"
API_SERVER_ERROR: Final = "APIServerError"
ERRORS_TO_TELL: Final = 3
"""So many failures in a row are no passing trouble of the API server."""
REJECTED: Final = (APPLY_REJECTED, POD_TEMPLATE_REJECTED)
"""What the API server refused: another time it may not, so it is tried again."""

log = logging.getLogger(__name__)


class UnsettledError(Exception):
    """The reconcile must be tried again; the message says why."""


class RejectedError(UnsettledError):
    """The API server refuses what the spec makes, and will again until somebody changes it."""


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
        observed, warned_again = await self._with_warnings(self._cluster.observe(owner))
        spec = read_spec(resource["spec"])
        trouble: Exception | None = None
        if owner.paused:
            result = Result(observed, missing=self._missing(owner, spec, resource, observed))
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

    async def _with_warnings(self, observed: Observed) -> tuple[Observed, timedelta | None]:
        """Adds what is said about pods that wait for their volumes, and when to look again."""
        pods, again = pods_to_ask_about(observed, self._clock())
        told = {}
        for pod in pods:
            if words := mount_warning(await self._cluster.warnings_about(pod), pod):
                told[pod["metadata"]["name"]] = words
        return (replace(observed, warnings=told) if told else observed), again

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
        observed = await self._with_claim(owner, spec, observed)
        previous = resource.get("status") or {}
        delivery = delivery_of(owner, spec, self._settings, observed, previous, self._clock())
        children = declared_children(owner, spec, self._settings, delivery, observed.served)
        if isinstance(children, Problem):
            return Result(observed, children, delivery=delivery)
        result = await self._apply_declared(owner, spec, children, delivery, observed, memory)
        failure = result.failure
        if failure is None and delivery.claim_problem:
            failure = Problem(CLAIM_IMMUTABLE, delivery.claim_problem)
        return replace(result, delivery=delivery, failure=failure)

    def _missing(
        self, owner: Owner, spec: Spec | Problem, resource: KubernetesObject, observed: Observed
    ) -> tuple[Id, ...]:
        """What a paused deployment lacks of what would be made."""
        if isinstance(spec, Problem):
            return ()
        previous = resource.get("status") or {}
        delivery = delivery_of(owner, spec, self._settings, observed, previous, self._clock())
        children = declared_children(owner, spec, self._settings, delivery, observed.served)
        return () if isinstance(children, Problem) else missing_children(children, observed)

    async def _with_claim(self, owner: Owner, spec: Spec, observed: Observed) -> Observed:
        """Adds the claim of the user's that the spec names: it does not carry our labels."""
        name = foreign_claim_name(owner.name, spec.model)
        if name is None or (CLAIM, name) in observed.children or not is_object_name(name):
            return observed
        found = await self._cluster.get(CLAIM, owner.namespace, name)
        if found is None:
            return observed
        return replace(observed, children={**observed.children, (CLAIM, name): found})

    async def _apply_declared(
        self,
        owner: Owner,
        spec: Spec,
        children: tuple[KubernetesObject, ...],
        delivery: Delivery,
        observed: Observed,
        memory: Memory,
    ) -> Result:
        current: dict[Id, KubernetesObject | None] = {}
        for child in children:
            kind, name = id_of(child)
            # Objects of others do not carry our labels, so no watch tells about them.
            found = observed.children.get((kind, name)) or await self._cluster.get(
                kind, owner.namespace, name
            )
            match ownership_of(owner, found):
                case Ownership.FOREIGN:
                    return Result(observed, conflict(found, owner))
                case Ownership.LEAVING:
                    raise UnsettledError(f"{kind} {name} is still being deleted")
            current[kind, name] = found
        if refused := await self._applier.try_template(owner, spec, delivery, observed, memory):
            return Result(observed, refused)
        course = self._course(owner, spec.rollout, observed, memory)
        result = await self._applier.apply_children(
            owner, children, current, observed, memory, course
        )
        if result.failure is None:
            await self._applier.prune(owner, set(current) | delivery.kept, observed)
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
) -> tuple[KubernetesObject, ...] | Problem:
    """The children of a spec, or what is wrong with the spec."""
    try:
        return make_children(owner, spec, settings, delivery, served)
    except TemplateError as error:
        return Problem(error.reason, str(error))
