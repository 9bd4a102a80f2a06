"""What the picker reads from Kubernetes: endpoints, and the FastGenDeployment itself."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from lightkube import AsyncClient
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod
from lightkube.resources.discovery_v1 import EndpointSlice

from fastgen_api import names
from fastgen_api.spec import Spec, parse
from fastgen_balancer.endpoints import Endpoint, Slice, merge
from fastgen_balancer.watch import follow

SERVICE_LABEL: Final = "kubernetes.io/service-name"
DEPLOYMENT_RESOURCE: Final = create_namespaced_resource(
    names.GROUP, names.VERSION, names.KIND, names.PLURAL
)

log = logging.getLogger(__name__)


class EndpointWatch:
    """Joins the two watches; tells nothing before both have listed."""

    def __init__(self, tell: Callable[[tuple[Endpoint, ...]], None]) -> None:
        self._tell = tell
        self._slices: tuple[Slice, ...] | None = None
        self._pods: dict[str, bool] | None = None
        self._told: tuple[Endpoint, ...] | None = None

    def slices_changed(self, objects: Mapping[str, Any]) -> None:
        items = (item.to_dict() for item in objects.values())
        self._slices = tuple(msgspec.convert(item, Slice) for item in items)
        self._tell_news()

    def pods_changed(self, objects: Mapping[str, Any]) -> None:
        self._pods = {
            name: pod.metadata.deletionTimestamp is not None for name, pod in objects.items()
        }
        self._tell_news()

    def _tell_news(self) -> None:
        if self._slices is None or self._pods is None:
            return
        endpoints = merge(self._slices, self._pods)
        if endpoints != self._told:
            log.info(
                "endpoints changed",
                extra={
                    "ready": [e.name for e in endpoints if not e.terminating],
                    "terminating": [e.name for e in endpoints if e.terminating],
                },
            )
            self._told = endpoints
            self._tell(endpoints)


async def watch_cluster(
    client: AsyncClient,
    deployment: str,
    namespace: str,
    tell_endpoints: Callable[[tuple[Endpoint, ...]], None],
    tell_spec: Callable[[Spec], None],
) -> None:
    """Tells of each change until it is cancelled."""
    endpoints = EndpointWatch(tell_endpoints)
    pod_labels = {
        names.DEPLOYMENT_LABEL: deployment,
        names.COMPONENT_LABEL: names.Component.REPLICA.value,
    }

    def deployment_changed(objects: Mapping[str, Any]) -> None:
        if (found := objects.get(deployment)) is None:
            return
        try:
            tell_spec(parse(found.get("spec") or {}))
        except msgspec.ValidationError as error:
            log.error("the FastGenDeployment does not read", extra={"error": str(error)})

    async with asyncio.TaskGroup() as group:
        group.create_task(
            follow(
                client,
                EndpointSlice,
                namespace,
                endpoints.slices_changed,
                labels={SERVICE_LABEL: names.replica_name(deployment)},
            )
        )
        group.create_task(follow(client, Pod, namespace, endpoints.pods_changed, labels=pod_labels))
        group.create_task(
            follow(
                client,
                DEPLOYMENT_RESOURCE,
                namespace,
                deployment_changed,
                fields={"metadata.name": deployment},
            )
        )
