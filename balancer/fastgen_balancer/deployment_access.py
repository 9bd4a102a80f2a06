"""The autoscaler's calls to the API server: one FastGenDeployment, its scale, status and events."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from lightkube import AsyncClient
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.events_v1 import Event

from fastgen_api import names
from fastgen_api.spec import KubernetesObject, Spec, parse
from fastgen_balancer.cluster import DEPLOYMENT_RESOURCE


class UnreadableError(Exception):
    """The FastGenDeployment does not fit this version's types; the message names the field."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A FastGenDeployment as it was read."""

    uid: str
    version: str
    """resourceVersion."""
    generation: int
    deleted: bool
    spec: Spec
    status: KubernetesObject


@dataclass(frozen=True, slots=True)
class DeploymentAccess:
    """Reaches one FastGenDeployment; every call raises lightkube's errors."""

    client: AsyncClient
    name: str
    namespace: str
    instance: str
    """Who writes: the pod."""

    async def read(self) -> Deployment:
        """Raises UnreadableError."""
        try:
            found = await self.client.get(DEPLOYMENT_RESOURCE, self.name, namespace=self.namespace)
        except RecursionError as error:
            raise UnreadableError("it is nested too deeply") from error
        meta = found["metadata"]
        try:
            spec = parse(found.get("spec") or {})
        except msgspec.ValidationError as error:
            raise UnreadableError(str(error)) from error
        return Deployment(
            uid=meta["uid"],
            version=meta["resourceVersion"],
            generation=meta.get("generation", 0),
            deleted="deletionTimestamp" in meta,
            spec=spec,
            status=found.get("status") or {},
        )

    async def scale(self, deployment: Deployment, replicas: int) -> None:
        """Writes `/scale`; fails with a conflict when anything changed since the read."""
        meta = ObjectMeta(
            name=self.name, namespace=self.namespace, resourceVersion=deployment.version
        )
        scale: Any = DEPLOYMENT_RESOURCE.Scale(metadata=meta, spec=ScaleSpec(replicas=replicas))
        await self.client.replace(
            scale,
            self.name,
            namespace=self.namespace,
            field_manager=names.BALANCER_MANAGER,
        )

    async def apply_status(self, deployment: Deployment, status: KubernetesObject) -> None:
        """Server-side applies our part of the status, which must be whole."""
        body: Any = DEPLOYMENT_RESOURCE.Status(
            apiVersion=names.API_VERSION,
            kind=names.KIND,
            metadata=ObjectMeta(name=self.name, namespace=self.namespace, uid=deployment.uid),
            status=status,
        )
        await self.client.apply(
            body,
            self.name,
            namespace=self.namespace,
            field_manager=names.BALANCER_MANAGER,
            force=True,
        )

    async def tell(self, deployment: Deployment, reason: str, note: str) -> None:
        """Creates an Event on the FastGenDeployment."""
        event = Event(
            eventTime=datetime.now(UTC),
            metadata=ObjectMeta(name=f"{self.name}.{uuid.uuid4().hex}", namespace=self.namespace),
            action="Scale",
            reason=reason,
            note=note[:1024],
            type="Normal",
            regarding=ObjectReference(
                apiVersion=names.API_VERSION,
                kind=names.KIND,
                name=self.name,
                namespace=self.namespace,
                uid=deployment.uid,
            ),
            reportingController=names.BALANCER_MANAGER,
            reportingInstance=self.instance[:128],
        )
        await self.client.create(event)
