"""Leader election with a coordination.k8s.io Lease: one writer at a time.

Method of client-go's leaderelection: a lease counts from when this process saw it change, so the
clocks of two machines need not agree.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.coordination_v1 import Lease

from fastgen_api.names import DECIDED_ANNOTATION, MEMO_ANNOTATION

log = logging.getLogger(__name__)

CONFLICT: Final = 409
NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Timing:
    """Lengths in seconds; a renewal must succeed well before others may take the lease."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


TIMING: Final = Timing()


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease as it was read, and when its present content was seen first."""

    holder: str
    version: str
    """resourceVersion: changes with every renewal."""
    duration: float
    since: float


class Move(StrEnum):
    """What to do about the lease."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"
    """We led, and may no longer: stop writing."""


def next_lease(
    lease: Seen | None, identity: str, held_since: float | None, now: float, timing: Timing
) -> Move:
    """Decides; `held_since`: when our last successful renewal began, None while we do not lead."""
    leads = held_since is not None
    if held_since is not None and now - held_since >= timing.renew_deadline:
        return Move.LOST
    if lease is None or not lease.holder:
        return Move.LOST if leads else Move.ACQUIRE
    if lease.holder == identity:
        return Move.RENEW if leads else Move.ACQUIRE
    if leads:
        return Move.LOST
    return Move.ACQUIRE if now - lease.since >= lease.duration else Move.WAIT


async def lease_holder(client: AsyncClient, namespace: str, name: str) -> str | None:
    """The identity that holds the lease; raises lightkube's errors."""
    lease = await client.get(Lease, name, namespace=namespace)
    return lease.spec.holderIdentity if lease.spec else None


class Leadership:
    """Holds the lease, or waits for it; `seconds_left` says how long we surely lead."""

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        owner: OwnerReference | None = None,
        timing: Timing = TIMING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` must be this process's alone; the lease goes when `owner` goes."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._owner = owner
        self._timing = timing
        self._clock = clock
        self._lease: Lease | None = None
        self._seen: Seen | None = None
        self._held_since: float | None = None
        self.decided_at: float | None = None
        """When the leader has decided last, seconds since the epoch; it goes out with the next
        renewal. Whoever comes to lead finds the predecessor's here."""
        self.before_release: Callable[[], Awaitable[None]] = _nothing
        """Awaited before the lease is given back: what the next leader should find."""
        self.terms = 0
        """How often this process has come to lead: between two terms another one may have led."""

    @property
    def seconds_left(self) -> float:
        """Until the last moment at which a write may begin; 0 or less: we do not lead."""
        if self._held_since is None:
            return 0.0
        return self._held_since + self._timing.renew_deadline - self._clock()

    @property
    def write_seconds(self) -> float:
        """Longest time of one write: it ends before another process may hold the lease."""
        return 0.8 * (self._timing.duration - self._timing.renew_deadline)

    @property
    def leads(self) -> bool:
        return self.seconds_left > 0

    async def run(self) -> None:
        """Acquires, renews and waits until it is cancelled; then gives the lease back."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(self._timing.retry)
        finally:
            await self.release()

    async def step(self) -> Move:
        """One look at the lease and what follows from it; API errors are for the next step."""
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                await self._read()
                move = self._decide()
                if move in (Move.ACQUIRE, Move.RENEW):
                    await self._write()
                return move
        except ApiError as error:
            if error.status.code == CONFLICT:
                log.info("another process changed the lease first")
            else:
                log.warning("the lease cannot be used", extra={"code": error.status.code})
        except (httpx2.HTTPError, TimeoutError) as error:
            log.warning("the API server does not answer", extra={"error": type(error).__name__})
        return self._decide_blindly()

    async def release(self) -> None:
        """Gives the lease back, so that a successor need not wait for its end."""
        if self.leads:
            with contextlib.suppress(ApiError, httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(self._timing.retry):
                    await self.before_release()
        lease, leads = self._lease, self.leads
        self._held_since = None
        if not leads or lease is None:
            return
        fields = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        freed = _changed(lease, self.decided_at, fields)
        with contextlib.suppress(ApiError, httpx2.HTTPError, TimeoutError):
            async with asyncio.timeout(self._timing.retry):
                await self._client.replace(freed)

    def _decide(self) -> Move:
        move = next_lease(self._seen, self._identity, self._held_since, self._clock(), self._timing)
        if move is Move.LOST:
            log.warning("the lease is lost")
            self._held_since = None
        return move

    def _decide_blindly(self) -> Move:
        """Without news of the lease: only our own deadline counts."""
        if self._held_since is not None and not self.leads:
            log.warning("the lease could not be renewed in time")
            self._held_since = None
            return Move.LOST
        return Move.WAIT

    async def _read(self) -> None:
        try:
            lease = await self._client.get(Lease, self._name, namespace=self._namespace)
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise
            self._lease = self._seen = None
            return
        self._note(lease)

    async def _write(self) -> None:
        began, old = self._clock(), self._lease
        first = self._held_since is None
        fields: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "renewTime": _now(),
        }
        if first:
            self.decided_at = _decided_at(old)
            spec = None if old is None else old.spec
            fields["acquireTime"] = fields["renewTime"]
            fields["leaseTransitions"] = 0 if spec is None else (spec.leaseTransitions or 0) + 1
        if old is None:
            meta = ObjectMeta(
                name=self._name,
                namespace=self._namespace,
                ownerReferences=[self._owner] if self._owner else None,
            )
            made = Lease(metadata=meta)
            new = await self._client.create(_changed(made, self.decided_at, fields))
        else:
            # Carries the resourceVersion that was read: of two contenders one gets a conflict.
            new = await self._client.replace(_changed(old, self.decided_at, fields))
        self._note(new)
        self._held_since = began
        if first:
            self.terms += 1
            log.info("this process leads", extra={"lease": self._name})

    def _note(self, lease: Lease) -> None:
        self._lease = lease
        version = (lease.metadata.resourceVersion if lease.metadata else None) or ""
        if self._seen is not None and self._seen.version == version:
            return
        spec = lease.spec
        duration = spec.leaseDurationSeconds if spec else None
        self._seen = Seen(
            holder=(spec.holderIdentity if spec else None) or "",
            version=version,
            duration=float(duration or self._timing.duration),
            since=self._clock(),
        )


def _changed(lease: Lease, decided_at: float | None, fields: dict[str, Any]) -> Any:
    raw = lease.to_dict()
    meta = raw["metadata"]
    # Earlier versions kept the whole memory here.
    kept = {k: v for k, v in (meta.get("annotations") or {}).items() if k != MEMO_ANNOTATION}
    if decided_at is not None:
        kept[DECIDED_ANNOTATION] = f"{decided_at:.3f}"
    changed = {
        **raw,
        "metadata": {**meta, "annotations": kept},
        "spec": {**(raw.get("spec") or {}), **fields},
    }
    return Lease.from_dict(changed)


def _decided_at(lease: Lease | None) -> float | None:
    annotations = lease.metadata.annotations if lease and lease.metadata else None
    try:
        return float((annotations or {})[DECIDED_ANNOTATION])
    except (KeyError, ValueError):
        return None


async def _nothing() -> None:
    """Nobody has anything to leave."""


def _now() -> str:
    """Now as the API's MicroTime."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
