"""Brings one FastGenDeployment's children and status to what its spec says."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fastgen_api import names
from fastgen_api import spec as api
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Rollout, Spec
from fastgen_operator.ailments import is_stuck
from fastgen_operator.children import Id, id_of, make_children
from fastgen_operator.cluster import Cluster, ClusterError
from fastgen_operator.delivery import Delivery, foreign_claim_name
from fastgen_operator.delivery_seen import CLAIM
from fastgen_operator.delivery_state import delivery_of
from fastgen_operator.drift import content_fingerprint, is_applied, keep_template
from fastgen_operator.fingerprint import fingerprint
from fastgen_operator.foreign_scaler import give_way
from fastgen_operator.merge import TemplateError
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.mounts import mount_warning, pods_to_ask_about
from fastgen_operator.observed import Observed, Problem, deployment_of
from fastgen_operator.obsolete import obsolete_conditions
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.ownership import Claim, claim_on, conflict
from fastgen_operator.pause import missing_children
from fastgen_operator.queue import Key
from fastgen_operator.rollout import RolloutDecision, carry_out, decide_rollout, rollout_state
from fastgen_operator.settings import Settings
from fastgen_operator.situation import Outcome
from fastgen_operator.status import (
    OUR_CONDITIONS,
    Notice,
    is_frozen,
    notices_of,
    same_status,
    status_of,
)
from fastgen_operator.template_trial import POD_TEMPLATE_REJECTED, deployment_to_try, refusal

INVALID_SPEC: Final = "InvalidSpec"
APPLY_REJECTED: Final = "ApplyRejected"
CLAIM_IMMUTABLE: Final = "ClaimImmutable"
REJECTED: Final = (APPLY_REJECTED, POD_TEMPLATE_REJECTED)
"""What the API server refused: another time it may not, so it is tried again."""
SAME_NOTICE_AFTER: Final = timedelta(minutes=5)

log = logging.getLogger(__name__)


class UnsettledError(Exception):
    """The reconcile must be tried again; the message says why."""


@dataclass(slots=True)
class _Memory:
    """What is remembered of a FastGenDeployment between reconciles; it may be lost."""

    contents: dict[Id, str] = field(default_factory=dict)
    """Fingerprint of what the API server made of each child that was applied."""
    tried: str = ""
    """Fingerprint of the last Deployment that passed a trial."""
    waiting_since: datetime | None = None
    """Since when a new replica has waited for room."""
    told: dict[Notice, datetime] = field(default_factory=dict)
    """When each event of the last SAME_NOTICE_AFTER was written."""

    def may_tell(self, notice: Notice, now: datetime) -> bool:
        """Whether the event was not written lately; notes that it is now."""
        self.told = {each: at for each, at in self.told.items() if now - at < SAME_NOTICE_AFTER}
        is_new = notice not in self.told
        if is_new:
            self.told[notice] = now
        return is_new


@dataclass(frozen=True, slots=True)
class _Result:
    """What came of applying the children."""

    observed: Observed
    failure: Problem | None = None
    upgrade: str = ""
    created: bool = False
    delivery: Delivery | None = None
    missing: tuple[Id, ...] = ()


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
        self._memories: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """parse, observe, make, apply, prune, report.

        Returns the seconds after which time alone may have changed something; None: it cannot.
        Raises ClusterError when the API server fails, UnsettledError when more is to do later.
        """
        resource = self._cluster.resource(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._memories.pop(key, None)  # The garbage collector takes the children.
            return None
        owner = owner_of(resource)
        memory = self._memories.setdefault(key, _Memory())
        observed, warned_again = await self._with_warnings(self._cluster.observe(owner))
        spec = read_spec(resource["spec"])
        if owner.paused:
            result = _Result(observed, missing=self._missing(owner, spec, resource, observed))
        elif isinstance(spec, Problem):
            result = _Result(observed, spec)
        else:
            result = await self._apply_spec(owner, spec, resource, observed, memory)
        rollout = Rollout() if isinstance(spec, Problem) else spec.rollout
        course = self._course(owner, rollout, result.observed, memory)
        frozen = is_frozen(resource["spec"], self._settings)
        outcome = Outcome(
            result.failure,
            result.upgrade,
            frozen,
            result.delivery,
            missing=result.missing,
            rollout=course,
        )
        await self._report(owner, resource, result, memory, outcome)
        if result.failure and result.failure.reason in REJECTED:
            raise UnsettledError(result.failure.message)
        times = [each for each in (course.again, warned_again) if each is not None]
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
        self, owner: Owner, rollout: Rollout, observed: Observed, memory: _Memory
    ) -> RolloutDecision:
        """How the replicas' rollout goes on."""
        now = self._clock()
        deployment = deployment_of(observed, owner.name, Component.REPLICA)
        state = rollout_state(deployment, observed, Component.REPLICA, now)
        decision = decide_rollout(rollout, state, memory.waiting_since, now)
        memory.waiting_since = decision.waiting_since
        return decision

    async def _apply_spec(
        self,
        owner: Owner,
        spec: Spec,
        resource: KubernetesObject,
        observed: Observed,
        memory: _Memory,
    ) -> _Result:
        observed = await self._with_claim(owner, spec, observed)
        previous = resource.get("status") or {}
        delivery = delivery_of(owner, spec, self._settings, observed, previous, self._clock())
        children = declared_children(owner, spec, self._settings, delivery, observed.served)
        if isinstance(children, Problem):
            return _Result(observed, children, delivery=delivery)
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
        if name is None or (CLAIM, name) in observed.children:
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
        memory: _Memory,
    ) -> _Result:
        current: dict[Id, KubernetesObject | None] = {}
        for child in children:
            kind, name = id_of(child)
            # Objects of others do not carry our labels, so no watch tells about them.
            found = observed.children.get((kind, name)) or await self._cluster.get(
                kind, owner.namespace, name
            )
            match claim_on(owner, found):
                case Claim.FOREIGN:
                    return _Result(observed, conflict(found, owner))
                case Claim.LEAVING:
                    raise UnsettledError(f"{kind} {name} is still being deleted")
            current[kind, name] = found
        if refused := await self._try_template(owner, spec, delivery, observed, memory):
            return _Result(observed, refused)
        course = self._course(owner, spec.rollout, observed, memory)
        result = await self._apply_children(owner, children, current, observed, memory, course)
        if result.failure is None:
            await self._prune(owner, set(current) | delivery.kept, observed)
        return result

    async def _try_template(
        self, owner: Owner, spec: Spec, delivery: Delivery, observed: Observed, memory: _Memory
    ) -> Problem | None:
        """Has a new spec.podTemplate checked before anything of the spec is applied."""
        tried = deployment_to_try(owner, spec, self._settings, delivery, observed)
        if tried is None or memory.tried == (mark := fingerprint(tried)):
            return None
        try:
            await self._cluster.check(tried)
        except ClusterError as error:
            if error.is_farewell or error.is_race or not error.is_rejection:
                raise
            # Another part of the spec may be to blame; it is told when it is applied.
            return refusal(str(error), tried, spec)
        memory.tried = mark
        return None

    async def _apply_children(
        self,
        owner: Owner,
        children: tuple[KubernetesObject, ...],
        current: dict[Id, KubernetesObject | None],
        observed: Observed,
        memory: _Memory,
        course: RolloutDecision,
    ) -> _Result:
        after = dict(observed.children)
        upgrade = ""
        created = False
        failure: Problem | None = None
        for child in children:
            identity = id_of(child)
            found = current[identity]
            desired = keep_template(child, found, is_stuck(found, observed))
            upgrade = upgrade or _upgrade_message(child, desired)
            if identity == ("Deployment", names.replica_name(owner.name)):
                wanted = give_way(desired, found, observed.scalers)["spec"]["replicas"]
                desired = carry_out(desired, course, wanted)
            marked = give_way(desired, found, observed.scalers)
            if found and is_applied(marked, found, memory.contents.get(identity)):
                continue
            try:
                after[identity] = await self._cluster.apply(marked)
            except ClusterError as error:
                if error.is_kind_gone and identity[0] in MONITORING_KINDS:
                    continue  # Its watch will tell, and soon.
                if error.is_farewell or error.is_race or not error.is_rejection:
                    raise
                problem = Problem(APPLY_REJECTED, f"{' '.join(identity)}: {error}")
                if identity[0] == CLAIM and found:
                    failure = problem  # One that cannot grow is as good as it was.
                    continue
                return _Result(replace(observed, children=after), problem, upgrade, created)
            memory.contents[identity] = content_fingerprint(after[identity])
            created = created or found is None
            log.info("applied", extra={"object": identity, "key": (owner.namespace, owner.name)})
        return _Result(replace(observed, children=after), failure, upgrade, created)

    async def _prune(self, owner: Owner, wanted: set[Id], observed: Observed) -> None:
        for identity, child in observed.children.items():
            if identity not in wanted and claim_on(owner, child) is Claim.OURS:
                await self._cluster.delete(child)
                log.info("deleted", extra={"object": identity})

    async def _report(
        self,
        owner: Owner,
        resource: KubernetesObject,
        result: _Result,
        memory: _Memory,
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
            if memory.may_tell(notice, now):
                await self._cluster.tell(owner, notice, now, self._settings.identity)


def read_spec(raw: KubernetesObject) -> Spec | Problem:
    """A stored spec, or what is wrong with it.

    The API server validates, but not what was stored under an older schema.
    """
    try:
        return api.parse(raw)
    except msgspec.ValidationError as error:
        return Problem(INVALID_SPEC, str(error).replace("`$.", "`spec.").replace("`$`", "`spec`"))


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


def _upgrade_message(made: KubernetesObject, desired: KubernetesObject) -> str:
    if made is desired:
        return ""
    running = desired["spec"]["template"]["spec"]["containers"][0].get("image", "")
    newer = made["spec"]["template"]["spec"]["containers"][0]["image"]
    return (
        f"{made['metadata']['name']} runs as an earlier operator made it (image {running}); the "
        f"next change of spec.model, spec.engine, spec.image or spec.resources moves it to {newer}"
    )
