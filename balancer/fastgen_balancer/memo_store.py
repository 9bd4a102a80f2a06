"""Where a deployment's leaders leave their memory: a Lease of its own, which is written seldom.

The Lease by which they are elected is written every two seconds; with the memory in it each of
those writes would store some kilobytes for nothing. Whoever comes to lead claims this one by a
write: one of the leader before that comes later meets another version, and is refused.
"""

import logging
from typing import Any, Final

from lightkube import ApiError, AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.coordination_v1 import Lease

from fastgen_api.names import MEMO_ANNOTATION

CONFLICT: Final = 409
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
ATTEMPTS: Final = 3

log = logging.getLogger(__name__)


class MemoStore:
    """One contender's access to it; every call raises lightkube's errors."""

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        name: str,
        identity: str,
        owner: OwnerReference | None = None,
    ) -> None:
        """`identity` must be this process's alone; what is left goes when `owner` goes."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._owner = owner
        self._lease: Lease | None = None
        """As this process has written it last; None: another one may have since."""

    async def take(self) -> str:
        """What the leader before has left; from now on it can leave no more. By a new leader."""
        self._lease = None
        for left in reversed(range(ATTEMPTS)):
            found = await self._read()
            try:
                self._lease = await self._write(found, _memo_of(found))
            except ApiError as error:
                if error.status.code == FORBIDDEN:
                    # As under the Role of an earlier version.
                    log.warning("what leaders remember cannot be kept", extra={"lease": self._name})
                    return ""
                if error.status.code != CONFLICT or not left:
                    raise
                continue
            return _memo_of(found)
        raise AssertionError("unreachable")

    async def leave(self, memo: str) -> None:
        """Keeps it for the next leader, unless there is one already."""
        if self._lease is None:
            return
        try:
            self._lease = await self._write(self._lease, memo)
        except ApiError as error:
            if error.status.code != CONFLICT:
                raise
            # Of an own write the answer may have been lost: then the version is ours.
            found = await self._read()
            holder = found.spec.holderIdentity if found and found.spec else None
            self._lease = found if holder == self._identity else None
            if self._lease is None:
                log.info("another process leads: what this one remembers is not kept")
                return
            raise

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(Lease, self._name, namespace=self._namespace)
        except ApiError as error:
            if error.status.code == FORBIDDEN:
                return None
            if error.status.code != NOT_FOUND:
                raise
            return None

    async def _write(self, old: Lease | None, memo: str) -> Lease:
        if old is None:
            meta = ObjectMeta(
                name=self._name,
                namespace=self._namespace,
                ownerReferences=[self._owner] if self._owner else None,
                annotations={MEMO_ANNOTATION: memo},
            )
            first = Lease(metadata=meta, spec=LeaseSpec(holderIdentity=self._identity))
            return await self._client.create(first)
        raw = old.to_dict()
        annotations = {**(raw["metadata"].get("annotations") or {}), MEMO_ANNOTATION: memo}
        changed = raw | {
            "metadata": raw["metadata"] | {"annotations": annotations},
            "spec": (raw.get("spec") or {}) | {"holderIdentity": self._identity},
        }
        made: Any = Lease.from_dict(changed)
        # Carries the resourceVersion that was read: of two writers one gets a conflict.
        written: Lease = await self._client.replace(made)
        return written


def _memo_of(lease: Lease | None) -> str:
    annotations = lease.metadata.annotations if lease and lease.metadata else None
    return str((annotations or {}).get(MEMO_ANNOTATION, ""))
