"""Applies the children of one FastGenDeployment, and takes away what is no longer one."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from fastgen_api import names
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.ailments import is_stuck
from fastgen_operator.children import Id, id_of
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.contest import Repairs, contested, is_repair
from fastgen_operator.delivery import Delivery
from fastgen_operator.delivery_seen import CLAIM
from fastgen_operator.drift import content_fingerprint, is_applied, keep_template
from fastgen_operator.fingerprint import fingerprint
from fastgen_operator.foreign_scaler import give_way
from fastgen_operator.kinds import is_of_balancer
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner
from fastgen_operator.ownership import (
    Ownership,
    balancer_ownership,
    conflict,
    may_prune,
    ownership_of,
)
from fastgen_operator.party import Party
from fastgen_operator.rollout import RolloutDecision, carry_out
from fastgen_operator.settings import Settings
from fastgen_operator.status import Notice
from fastgen_operator.template_trial import deployment_to_try, refusal
from fastgen_operator.unsettled import UnsettledError

APPLY_REJECTED: Final = "ApplyRejected"
SAME_NOTICE_AFTER: Final = timedelta(minutes=5)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Memory:
    """What is remembered of a FastGenDeployment between reconciles; it may be lost."""

    contents: dict[Id, str] = field(default_factory=dict)
    """Fingerprint of what the API server made of each child that was applied."""
    tried: str = ""
    """Fingerprint of the last Deployment that passed a trial."""
    waiting_since: datetime | None = None
    """Since when a new replica has waited for room."""
    repairs: Repairs = field(default_factory=Repairs)
    errors: int = 0
    """How often in a row the API server failed while the children were applied."""
    crashes: int = 0
    """How often in a row the operator itself failed."""
    told: dict[tuple[int, str, str], datetime] = field(default_factory=dict)
    """When each event of the last SAME_NOTICE_AFTER was written, by generation, type and reason."""

    def may_tell(self, notice: Notice, generation: int, now: datetime) -> bool:
        """Whether nothing of this reason was told lately about this generation; notes that it is.

        Who first sees a failure words it one way, who looks closer another way: that is one event.
        """
        self.told = {each: at for each, at in self.told.items() if now - at < SAME_NOTICE_AFTER}
        key = (generation, notice.type, notice.reason)
        is_new = key not in self.told
        if is_new:
            self.told[key] = now
        return is_new


@dataclass(frozen=True, slots=True)
class Result:
    """What came of applying the children."""

    observed: Observed
    failure: Problem | None = None
    upgrade: str = ""
    created: bool = False
    delivery: Delivery | None = None
    missing: tuple[Id, ...] = ()
    hindrance: Problem | None = None
    again: timedelta | None = None
    """When a child may be put back that is left as others made it."""
    broken_routes: Problem | None = None


class Applier:
    """Carries out what was decided about the children."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock

    async def try_template(
        self, owner: Owner, spec: Spec, delivery: Delivery, observed: Observed, memory: Memory
    ) -> Problem | None:
        """Has a new spec.podTemplate checked before anything of the spec is applied."""
        tried = deployment_to_try(owner, spec, self._settings, delivery, observed)
        if tried is None or memory.tried == (mark := fingerprint(tried)):
            return None
        try:
            await self._cluster.check(tried)
        except ClusterError as error:
            if error.is_namespace_terminating or error.is_race or not error.is_rejection:
                raise
            # Another part of the spec may be to blame; it is told when it is applied.
            return refusal(str(error), tried, spec)
        memory.tried = mark
        return None

    async def claimed(
        self,
        owner: Owner,
        party: Party,
        children: tuple[KubernetesObject, ...],
        observed: Observed,
    ) -> dict[Id, KubernetesObject | None] | Problem:
        """What there is under the children's names; or that it is somebody else's.

        Raises UnsettledError while something of another time is there, and ClusterError.
        """
        living = {each.uid for each in self._cluster.bonds(owner.namespace).values()}
        current: dict[Id, KubernetesObject | None] = {}
        for child in children:
            kind, name = id_of(child)
            # Objects of others do not carry our labels, so no watch tells about them.
            found = observed.children.get((kind, name)) or await self._cluster.get(
                kind, owner.namespace, name
            )
            is_balancers = is_of_balancer(child, party.name)
            whose = (
                balancer_ownership(party, living, found)
                if is_balancers
                else ownership_of(owner, found)
            )
            match whose:
                case Ownership.FOREIGN:
                    is_shared = is_balancers and party.is_shared
                    return conflict(found, owner, party.name if is_shared else "")
                case Ownership.LEAVING:
                    raise UnsettledError(f"{kind} {name} is still being deleted")
            current[kind, name] = found
        return current

    async def apply_children(
        self,
        owner: Owner,
        children: tuple[KubernetesObject, ...],
        current: dict[Id, KubernetesObject | None],
        observed: Observed,
        memory: Memory,
        course: RolloutDecision,
    ) -> Result:
        """Applies in order what is not there as declared; a refusal ends it.

        `current`: what has a child's name and is ours. Raises ClusterError when the API server
        fails.
        """
        after = dict(observed.children)
        upgrade = ""
        created = False
        failure: Problem | None = None
        again: timedelta | None = None
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
            if is_repair(marked, found):
                wait = memory.repairs.wait(identity, self._clock())
                if wait is not None:
                    failure, again = await self._contested(owner, identity), wait
                    continue
                memory.repairs.note(identity, self._clock())
            try:
                after[identity] = await self._cluster.apply(marked)
            except ClusterError as error:
                if error.is_kind_gone and identity[0] in MONITORING_KINDS:
                    continue  # Its watch will tell, and soon.
                if error.is_namespace_terminating or error.is_race or not error.is_rejection:
                    raise
                problem = Problem(APPLY_REJECTED, f"{' '.join(identity)}: {error}")
                if identity[0] == CLAIM and found:
                    failure = problem  # One that cannot grow is as good as it was.
                    continue
                return Result(replace(observed, children=after), problem, upgrade, created)
            memory.contents[identity] = content_fingerprint(after[identity])
            created = created or found is None
            log.info("applied", extra={"object": identity, "key": (owner.namespace, owner.name)})
        return Result(replace(observed, children=after), failure, upgrade, created, again=again)

    async def _contested(self, owner: Owner, identity: Id) -> Problem:
        kind, name = identity
        # What the watch told does not say who wrote.
        return contested(identity, await self._cluster.get(kind, owner.namespace, name))

    async def prune(self, owner: Owner, wanted: set[Id], observed: Observed) -> None:
        """Deletes our children that are not wanted; raises ClusterError."""
        balancers = {each.balancer for each in self._cluster.bonds(owner.namespace).values()}
        for identity, child in observed.children.items():
            if identity in wanted:
                continue
            if may_prune(owner, child, observed.balancer, balancers):
                await self._cluster.delete(child)
                log.info("deleted", extra={"object": identity})


def _upgrade_message(made: KubernetesObject, desired: KubernetesObject) -> str:
    if made is desired:
        return ""
    running, newer = (_first_image(each) for each in (desired, made))
    to = f"to {newer}" if newer != running else "to the form that this operator gives its pods"
    return (
        f"{made['metadata']['name']} runs as an earlier operator made it (image {running}); the "
        f"next change of spec.model, spec.engine, spec.image or spec.resources moves it {to}"
    )


def _first_image(deployment: KubernetesObject) -> str:
    """Of the operator's own container: those of `spec.podTemplate` come after it."""
    return str(deployment["spec"]["template"]["spec"]["containers"][0].get("image", ""))
