"""Brings one FastGenDeployment's children and status to what its spec says."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fastgen_api import names
from fastgen_api import spec as api
from fastgen_api.spec import KubernetesObject
from fastgen_operator.ailments import is_stuck
from fastgen_operator.children import Id, id_of, make_children
from fastgen_operator.cluster import Cluster, ClusterError
from fastgen_operator.drift import (
    content_fingerprint,
    is_applied,
    keep_template,
    with_applied_annotation,
)
from fastgen_operator.foreign_scaler import give_way
from fastgen_operator.merge import TemplateError
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.ownership import Claim, claim_on, conflict
from fastgen_operator.queue import Key
from fastgen_operator.settings import Settings
from fastgen_operator.status import Notice, is_frozen, notices_of, same_status, status_of

INVALID_SPEC: Final = "InvalidSpec"
APPLY_REJECTED: Final = "ApplyRejected"
SAME_NOTICE_AFTER: Final = timedelta(minutes=5)

log = logging.getLogger(__name__)


class UnsettledError(Exception):
    """The reconcile must be tried again; the message says why."""


@dataclass(slots=True)
class _Memory:
    """What is remembered of a FastGenDeployment between reconciles; it may be lost."""

    contents: dict[Id, str] = field(default_factory=dict)
    """Fingerprint of what the API server made of each child that was applied."""
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

    async def reconcile(self, key: Key) -> None:
        """parse, observe, make, apply, prune, report.

        Raises ClusterError when the API server fails, UnsettledError when more is to do later.
        """
        resource = await self._cluster.get(names.KIND, *key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._memories.pop(key, None)  # The garbage collector takes the children.
            return
        owner = owner_of(resource)
        memory = self._memories.setdefault(key, _Memory())
        observed = await self._cluster.observe(owner)
        if owner.paused:
            result = _Result(observed)
        else:
            result = await self._apply_spec(owner, resource["spec"], observed, memory)
        frozen = is_frozen(resource["spec"], self._settings)
        await self._report(owner, resource.get("status") or {}, result, memory, frozen)
        if result.failure and result.failure.reason == APPLY_REJECTED:
            raise UnsettledError(result.failure.message)

    async def _apply_spec(
        self, owner: Owner, raw: KubernetesObject, observed: Observed, memory: _Memory
    ) -> _Result:
        children = declared_children(owner, raw, self._settings)
        if isinstance(children, Problem):
            return _Result(observed, children)
        current: dict[Id, KubernetesObject | None] = {}
        for child in children:
            kind, name = id_of(child)
            # Objects of others do not carry our labels, so the list does not show them.
            found = observed.children.get((kind, name)) or await self._cluster.get(
                kind, owner.namespace, name
            )
            match claim_on(owner, found):
                case Claim.FOREIGN:
                    return _Result(observed, conflict(found, owner))
                case Claim.LEAVING:
                    raise UnsettledError(f"{kind} {name} is still being deleted")
            current[kind, name] = found
        result = await self._apply_children(owner, children, current, observed, memory)
        if result.failure is None:
            await self._prune(owner, set(current), observed)
        return result

    async def _apply_children(
        self,
        owner: Owner,
        children: tuple[KubernetesObject, ...],
        current: dict[Id, KubernetesObject | None],
        observed: Observed,
        memory: _Memory,
    ) -> _Result:
        after = dict(observed.children)
        upgrade = ""
        created = False
        for child in children:
            identity = id_of(child)
            found = current[identity]
            desired = keep_template(child, found, is_stuck(found, observed))
            upgrade = upgrade or _upgrade_message(child, desired)
            marked = give_way(with_applied_annotation(desired), found, observed.scalers)
            if found and is_applied(marked, found, memory.contents.get(identity)):
                continue
            try:
                after[identity] = await self._cluster.apply(marked)
            except ClusterError as error:
                if error.is_farewell or error.is_race or not error.is_rejection:
                    raise
                problem = Problem(APPLY_REJECTED, f"{' '.join(identity)}: {error}")
                return _Result(replace(observed, children=after), problem, upgrade, created)
            memory.contents[identity] = content_fingerprint(after[identity])
            created = created or found is None
            log.info("applied", extra={"object": identity, "key": (owner.namespace, owner.name)})
        return _Result(replace(observed, children=after), None, upgrade, created)

    async def _prune(self, owner: Owner, wanted: set[Id], observed: Observed) -> None:
        for identity, child in observed.children.items():
            if identity not in wanted and claim_on(owner, child) is Claim.OURS:
                await self._cluster.delete(child)
                log.info("deleted", extra={"object": identity})

    async def _report(
        self,
        owner: Owner,
        previous: KubernetesObject,
        result: _Result,
        memory: _Memory,
        frozen: bool,
    ) -> None:
        now = self._clock()
        status = status_of(
            owner,
            result.observed,
            now,
            previous,
            failure=result.failure,
            upgrade=result.upgrade,
            frozen=frozen,
        )
        if same_status(status, previous):
            return
        await self._cluster.apply_status(owner, status)
        for notice in notices_of(previous, status, result.created):
            if memory.may_tell(notice, now):
                await self._cluster.tell(owner, notice, now, self._settings.identity)


def declared_children(
    owner: Owner, raw: KubernetesObject, settings: Settings
) -> tuple[KubernetesObject, ...] | Problem:
    """The children of a stored spec, or what is wrong with the spec.

    The API server validates, but not what was stored under an older schema.
    """
    try:
        return make_children(owner, api.parse(raw), settings)
    except (msgspec.ValidationError, TemplateError) as error:
        return Problem(INVALID_SPEC, str(error).replace("`$.", "`spec.").replace("`$`", "`spec`"))


def _upgrade_message(made: KubernetesObject, desired: KubernetesObject) -> str:
    if made is desired:
        return ""
    running = desired["spec"]["template"]["spec"]["containers"][0].get("image", "")
    newer = made["spec"]["template"]["spec"]["containers"][0]["image"]
    return (
        f"{made['metadata']['name']} runs as an earlier operator made it (image {running}); the "
        f"next change of spec.model, spec.engine, spec.image or spec.resources moves it to {newer}"
    )
