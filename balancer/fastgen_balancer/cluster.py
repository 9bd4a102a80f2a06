"""What the picker reads from Kubernetes: endpoints, and the FastGenDeployments themselves."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from lightkube import AsyncClient
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod
from lightkube.resources.discovery_v1 import EndpointSlice

from fastgen_api import names
from fastgen_api.sharing import Declared
from fastgen_api.spec import Balancer, Model, Spec, parse
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


async def watch_endpoints(
    client: AsyncClient,
    deployment: str,
    namespace: str,
    tell: Callable[[tuple[Endpoint, ...]], None],
) -> None:
    """Tells of each change of a deployment's endpoints until it is cancelled."""
    endpoints = EndpointWatch(tell)
    pod_labels = {
        names.DEPLOYMENT_LABEL: deployment,
        names.COMPONENT_LABEL: names.Component.REPLICA.value,
    }
    slice_labels = {SERVICE_LABEL: names.replica_name(deployment)}
    async with asyncio.TaskGroup() as group:
        group.create_task(
            follow(client, EndpointSlice, namespace, endpoints.slices_changed, labels=slice_labels)
        )
        group.create_task(follow(client, Pod, namespace, endpoints.pods_changed, labels=pod_labels))


class Declarations:
    """The FastGenDeployments of the namespace as they read; each is read once per change."""

    def __init__(self, known: Iterable[Declared] = ()) -> None:
        self._known = {each.name: each for each in known}
        self._versions: dict[str, tuple[Any, ...]] = {}

    def take(self, objects: Mapping[str, Any]) -> tuple[Declared, ...]:
        """All of them, in the order of their names, from the objects as the API server has them.

        One whose spec does not read stays as it was; with the defaults where it is new, since its
        replicas may well serve.
        """
        for name in self._known.keys() - objects.keys():
            del self._known[name]
            self._versions.pop(name, None)
        for name, found in objects.items():
            meta = found.get("metadata") or {}
            version = (meta.get("uid"), meta.get("generation"), "deletionTimestamp" in meta)
            if self._versions.get(name) != version:
                self._known[name] = _declared(name, found, self._known.get(name))
                self._versions[name] = version
        return tuple(self._known[name] for name in sorted(self._known))


def _declared(name: str, found: Mapping[str, Any], before: Declared | None) -> Declared:
    meta = found.get("metadata") or {}
    created, deleting = str(meta.get("creationTimestamp") or ""), "deletionTimestamp" in meta
    try:
        spec = parse(found.get("spec") or {})
    except (msgspec.ValidationError, RecursionError) as error:
        told = {"deployment": name, "error": str(error)}
        log.error("the FastGenDeployment does not read", extra=told)
        spec = before.spec if before else _defaults(found.get("spec"))
    return Declared(name, created, spec, deleting)


def _defaults(raw: Any) -> Spec:
    """The defaults, for whoever is meant by what still reads."""

    def text(*path: str) -> str:
        value = raw
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) else ""

    model = Model(source="", served_name=text("model", "servedName") or None)
    return Spec(model=model, balancer=Balancer(name=text("balancer", "name")))
