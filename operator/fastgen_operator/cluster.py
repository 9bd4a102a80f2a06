"""The only Kubernetes client: reads, server-side applies and deletes plain dicts."""

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from lightkube.core.client import FieldSelector, LabelSelector
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import ApiInfo, NamespacedResourceG, ResourceDef
from lightkube.types import PatchType

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.bonds import Bond
from fastgen_operator.children import id_of
from fastgen_operator.cluster_error import ClusterError, check_name, failure_of
from fastgen_operator.kinds import OUR_LABELS, RESOURCES, is_labelled, version_of
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner
from fastgen_operator.queue import Key
from fastgen_operator.shelf import Listing, Shelf
from fastgen_operator.status import Notice
from fastgen_operator.store import Store

PAGE_OBJECTS: Final = 200
"""A list of a whole fleet comes in pages, so that it never is in memory as a whole."""

log = logging.getLogger(__name__)


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

    def neighbours(self, owner: Owner) -> tuple[KubernetesObject, ...]:
        """The FastGenDeployments by which the owner's children are made, without itself."""
        found = self._store.neighbours((owner.namespace, owner.name))
        return tuple(each for each in found if each["metadata"]["name"] != owner.name)

    def bonds(self, namespace: str) -> Mapping[str, Bond]:
        """What ties the FastGenDeployments of a namespace to one another, by their names."""
        return self._store.bonds(namespace)

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
                for key in _taken(listing, each):
                    yield key
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        for key in listing.end(found.resourceVersion):
            yield key

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None:
        """The object, or None."""
        check_name(kind, name)
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
        applied = await self._patch(
            _Status,
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
                "status": status,
            },
        )
        known = self._store.resource((owner.namespace, owner.name))
        # A wish that no watch has told of yet must be news when one does.
        if known and _wish(known) == _wish(applied):
            self._store.put(applied)

    async def delete(self, child: KubernetesObject) -> None:
        """Deletes this child and no later one of its name; one that is gone already is fine."""
        kind, name = id_of(child)
        check_name(kind, name)
        metadata = child["metadata"]
        # By default a Job leaves its pods behind. Its name is free when none writes any more.
        cascade = {"propagationPolicy": "Foreground"} if kind == "Job" else {}
        options = {"preconditions": {"uid": metadata["uid"]}, **cascade}
        try:
            await self._delete(RESOURCES[kind], metadata["namespace"], name, options)
        except (httpx2.HTTPError, ConfigError) as error:
            failure = self._failure(error)
            if failure.code != 404 and not failure.is_of_another:
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

    async def _delete(
        self, resource: type[NamespacedResourceG], namespace: str, name: str, options: Any
    ) -> None:
        client = self._client._client  # AsyncClient.delete takes no preconditions.
        request = client.prepare_request("delete", resource, name=name, namespace=namespace)
        request.data = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        built = client.build_adapter_request(request)
        answer: Any = await client.send(built)  # type: ignore[no-untyped-call]
        client.handle_response("delete", answer, request)

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
        check_name(manifest["kind"], metadata["name"])
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


def _taken(listing: Listing, found: KubernetesObject) -> tuple[Key, ...]:
    try:
        return listing.add(found)
    except Exception:  # One odd object must not hide the others.
        metadata = found.get("metadata") or {}
        log.exception("an object was skipped", extra={"metadata": str(metadata)[:300]})
        return ()


def _wish(resource: KubernetesObject) -> tuple[Any, ...]:
    """What people say about a FastGenDeployment; the generation stands for the spec."""
    metadata = resource["metadata"]
    return tuple(metadata.get(each) for each in ("uid", "generation", "labels", "annotations"))
