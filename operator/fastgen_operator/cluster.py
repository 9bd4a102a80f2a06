"""The only Kubernetes client: reads, server-side applies and deletes plain dicts."""

import uuid
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from lightkube.core.client import FieldSelector, LabelSelector
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.resource import ApiInfo, NamespacedResourceG, ResourceDef
from lightkube.types import CascadeType, PatchType

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import id_of
from fastgen_operator.kinds import OUR_LABELS, RESOURCES, is_labelled, version_of
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner
from fastgen_operator.queue import Key
from fastgen_operator.status import Notice
from fastgen_operator.store import Shelf, Store

PAGE_OBJECTS: Final = 200
"""A list of a whole fleet comes in pages, so that it never is in memory as a whole."""
REJECTIONS: Final = frozenset({400, 403, 422})
"""Answers that say no to what was sent; all others, conflicts too, say that now is a bad time."""
RACE: Final = "the object has been modified"
"""How a write is refused that was made from an earlier version of what it changes."""
UNTYPED: Final = "failed to create typed patch object"
"""How server-side apply refuses unknown fields: with these words, and with 500."""
KIND_TERMINATING: Final = "custom resource definition is terminating"
TERMINATING: Final = "because it is being terminated"


class ClusterError(Exception):
    """The API server did not do what it was asked."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status; 0: no answer."""

    @property
    def is_rejection(self) -> bool:
        """Whether the same request will be refused again."""
        return self.code in REJECTIONS or UNTYPED in str(self)

    @property
    def is_race(self) -> bool:
        """Whether somebody else wrote in between: from a new read the same may succeed."""
        return self.code == 409 and RACE in str(self)

    @property
    def is_kind_gone(self) -> bool:
        """Whether the API server knows no such kind, or is about to forget it."""
        return self.code == 404 or KIND_TERMINATING in str(self)

    @property
    def is_farewell(self) -> bool:
        """Whether the namespace is being deleted, and our resource with it."""
        return self.code == 403 and TERMINATING in str(self)


class _Status(NamespacedResourceG, dict[str, Any]):
    """The status of a FastGenDeployment as a resource of its own."""

    _api_info = ApiInfo(
        resource=ResourceDef(names.GROUP, names.VERSION, names.KIND),
        parent=ResourceDef(names.GROUP, names.VERSION, names.KIND),
        plural=names.PLURAL,
        verbs=["get", "patch", "put"],
        action="status",
    )


class Cluster:
    """A connection to the API server; `on_answer` is called after each answer, refusals too.

    What the `store` is told by watches is read without asking; the answers to writes go there too,
    so that a write is seen at once.
    """

    def __init__(
        self, client: AsyncClient, on_answer: Callable[[], None], store: Store | None = None
    ) -> None:
        self._client = client
        self._on_answer = on_answer
        self._store = store or Store()

    def resource(self, key: Key) -> KubernetesObject | None:
        """The FastGenDeployment as it was last seen, or None."""
        return self._store.resource(key)

    def observe(self, owner: Owner) -> Observed:
        """What is known of the owner's children and pods, and of who else scales them.

        Raises ClusterError while some of it has never been listed.
        """
        if missing := self._store.missing(owner.namespace):
            raise ClusterError(0, f"not listed yet in {owner.namespace}: {', '.join(missing)}")
        return self._store.observe((owner.namespace, owner.name))

    async def fill(self, shelf: Shelf) -> AsyncIterator[Key]:
        """Lists into a shelf, page by page; yields the FastGenDeployments with news.

        Raises HistoryError as Listing.end does.
        """
        labels = OUR_LABELS if is_labelled(shelf.kind) else None
        listing = shelf.begin_list()
        found = self._client.list(
            RESOURCES[shelf.kind], namespace=shelf.scope, labels=labels, chunk_size=PAGE_OBJECTS
        )
        try:
            async for each in found:
                for key in listing.add(each):
                    yield key
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        for key in listing.end(found.resourceVersion):
            yield key

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None:
        """The object, or None."""
        try:
            found = await self._client.get(RESOURCES[kind], name, namespace=namespace)
        except (httpx2.HTTPError, ConfigError) as error:
            failure = self._failure(error)
            if failure.code == 404:
                return None
            raise failure from error
        self._on_answer()
        return dict(found)

    async def list(
        self, kind: str, namespace: str, labels: LabelSelector | None = None
    ) -> list[KubernetesObject]:
        """Objects of a kind; `namespace` may be ALL_NAMESPACES."""
        listing = self._client.list(RESOURCES[kind], namespace=namespace, labels=labels)
        try:
            found = [
                {"apiVersion": version_of(kind), "kind": kind, **item} async for item in listing
            ]
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        return found

    async def warnings_about(self, pod: KubernetesObject) -> tuple[KubernetesObject, ...]:
        """The warning events about a pod; none where the operator may not read events."""
        metadata = pod["metadata"]
        fields: FieldSelector = {"regarding.name": metadata["name"], "type": "Warning"}
        namespace = metadata["namespace"]
        listing = self._client.list(RESOURCES["Event"], namespace=namespace, fields=fields)
        try:
            found = tuple([dict(item) async for item in listing])
        except (httpx2.HTTPError, ConfigError) as error:
            failure = self._failure(error)
            if failure.code == 403:
                return ()
            raise failure from error
        self._on_answer()
        return found

    async def apply(self, manifest: KubernetesObject) -> KubernetesObject:
        """Server-side apply; fields that others hold become ours."""
        return await self._apply(RESOURCES[manifest["kind"]], manifest)

    async def check(self, manifest: KubernetesObject) -> None:
        """Asks whether `apply` would be refused; nothing changes. Raises ClusterError if so."""
        await self._patch(RESOURCES[manifest["kind"]], manifest, dry_run=True)

    async def apply_status(self, owner: Owner, status: KubernetesObject) -> None:
        """Server-side apply of the operator's part of the status."""
        await self._apply(
            _Status,
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
                "status": status,
            },
        )

    async def delete(self, child: KubernetesObject) -> None:
        """Deletes a child; one that is gone already is fine."""
        kind, name = id_of(child)
        namespace = child["metadata"]["namespace"]
        try:
            # By default a Job leaves its pods behind. Its name is free when none writes any more.
            cascade = CascadeType.FOREGROUND if kind == "Job" else None
            await self._client.delete(RESOURCES[kind], name, namespace=namespace, cascade=cascade)
        except (httpx2.HTTPError, ConfigError) as error:
            failure = self._failure(error)
            if failure.code != 404:
                raise failure from error
        else:
            self._on_answer()

    async def tell(self, owner: Owner, notice: Notice, now: datetime, reporter: str) -> None:
        """Writes a Kubernetes event about the FastGenDeployment."""
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{owner.name}.{uuid.uuid4().hex[:16]}",
                "namespace": owner.namespace,
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": notice.type,
            "reason": notice.reason,
            "note": notice.message[:1024],
            "action": "Reconcile",
            "reportingController": f"{names.GROUP}/{names.OPERATOR_MANAGER}",
            "reportingInstance": reporter[:128],
            "regarding": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": owner.name,
                "namespace": owner.namespace,
                "uid": owner.uid,
            },
        }
        try:
            await self._client.create(RESOURCES["Event"].from_dict(event))
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def _apply(
        self, resource: type[NamespacedResourceG], manifest: KubernetesObject
    ) -> KubernetesObject:
        applied = await self._patch(resource, manifest)
        self._store.put(applied)
        return applied

    async def _patch(
        self,
        resource: type[NamespacedResourceG],
        manifest: KubernetesObject,
        *,
        dry_run: bool = False,
    ) -> KubernetesObject:
        metadata = manifest["metadata"]
        try:
            applied: Any = await self._client.patch(
                resource,
                metadata["name"],
                manifest,
                namespace=metadata["namespace"],
                patch_type=PatchType.APPLY,
                field_manager=names.OPERATOR_MANAGER,
                force=True,
                dry_run=dry_run,
            )
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        return dict(applied)

    def _failure(self, error: httpx2.HTTPError | ConfigError) -> ClusterError:
        failure = failure_of(error)
        if failure.code:
            self._on_answer()
        return failure


def failure_of(error: httpx2.HTTPError | ConfigError) -> ClusterError:
    """What the client's error says; code 0 where nobody answered."""
    if isinstance(error, ApiError):
        return ClusterError(error.response.status_code, error.status.message or str(error))
    if isinstance(error, httpx2.HTTPStatusError):
        return ClusterError(error.response.status_code, str(error))
    return ClusterError(0, f"{type(error).__name__}: {error}")
