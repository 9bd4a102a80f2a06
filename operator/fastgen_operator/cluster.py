"""The only Kubernetes client: reads, server-side applies and deletes plain dicts."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from lightkube.core.client import LabelSelector
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.resource import ApiInfo, NamespacedResourceG, ResourceDef
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.generic_resource import create_api_info as api_info
from lightkube.types import PatchType

from fastgen_api import names
from fastgen_api.foreign_scaler import AUTOSCALER_KIND, foreign_scalers
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import CHILD_KINDS, id_of
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner
from fastgen_operator.status import Notice

ALL_NAMESPACES: Final = "*"
REJECTIONS: Final = frozenset({400, 403, 409, 422})
"""Answers that say no to what was sent; all others say that now is a bad time."""
RACE: Final = "the object has been modified"
"""How a write is refused that was made from an earlier version of what it changes."""
UNTYPED: Final = "failed to create typed patch object"
"""How server-side apply refuses unknown fields: with these words, and with 500."""
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
    def is_farewell(self) -> bool:
        """Whether the namespace is being deleted, and our resource with it."""
        return self.code == 403 and TERMINATING in str(self)


def _resource(group: str, version: str, kind: str, plural: str) -> type[GenericNamespacedResource]:
    # Not through lightkube's registry: it would refuse a second class for the kinds that lightkube
    # itself loads, and those are no dicts.
    return type(
        kind, (GenericNamespacedResource,), {"_api_info": api_info(group, version, kind, plural)}
    )


RESOURCES: Final = {
    "ServiceAccount": _resource("", "v1", "ServiceAccount", "serviceaccounts"),
    "Role": _resource("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    "RoleBinding": _resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    "ConfigMap": _resource("", "v1", "ConfigMap", "configmaps"),
    "PersistentVolumeClaim": _resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    "Service": _resource("", "v1", "Service", "services"),
    "PodDisruptionBudget": _resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    "NetworkPolicy": _resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    "Job": _resource("batch", "v1", "Job", "jobs"),
    "Deployment": _resource("apps", "v1", "Deployment", "deployments"),
    AUTOSCALER_KIND: _resource("autoscaling", "v2", AUTOSCALER_KIND, "horizontalpodautoscalers"),
    "Pod": _resource("", "v1", "Pod", "pods"),
    "Event": _resource("events.k8s.io", "v1", "Event", "events"),
    names.KIND: _resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL),
}


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
    """A connection to the API server; `on_answer` is called after each answer, refusals too."""

    def __init__(self, client: AsyncClient, on_answer: Callable[[], None]) -> None:
        self._client = client
        self._on_answer = on_answer

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
        resource = RESOURCES[kind]
        version = resource._api_info.resource.api_version
        try:
            found = [
                {"apiVersion": version, "kind": kind, **item}
                async for item in self._client.list(resource, namespace=namespace, labels=labels)
            ]
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        return found

    async def observe(self, owner: Owner) -> Observed:
        """All children and pods that carry the owner's label, and who else scales them."""
        labels: LabelSelector = {
            names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER,
            names.DEPLOYMENT_LABEL: owner.name,
        }
        *children, pods, autoscalers = await asyncio.gather(
            *(self.list(kind, owner.namespace, labels) for kind in (*CHILD_KINDS, "Pod")),
            self.list(AUTOSCALER_KIND, owner.namespace),
        )
        return Observed(
            children={id_of(child): child for group in children for child in group},
            pods=tuple(pods),
            scalers=foreign_scalers(autoscalers, owner.name),
        )

    async def apply(self, manifest: KubernetesObject) -> KubernetesObject:
        """Server-side apply; fields that others hold become ours."""
        return await self._apply(RESOURCES[manifest["kind"]], manifest)

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
            await self._client.delete(RESOURCES[kind], name, namespace=namespace)
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
            )
        except (httpx2.HTTPError, ConfigError) as error:
            raise self._failure(error) from error
        self._on_answer()
        return dict(applied)

    def _failure(self, error: httpx2.HTTPError | ConfigError) -> ClusterError:
        failure = _failure(error)
        if failure.code:
            self._on_answer()
        return failure


def _failure(error: httpx2.HTTPError | ConfigError) -> ClusterError:
    if isinstance(error, ApiError):
        return ClusterError(error.response.status_code, error.status.message or str(error))
    if isinstance(error, httpx2.HTTPStatusError):
        return ClusterError(error.response.status_code, str(error))
    return ClusterError(0, f"{type(error).__name__}: {error}")
