"""Kopf's part: watch, and ask for a reconcile.

Only `on.event` handlers: the others would write annotations and finalizers onto the resources.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import kopf
from lightkube import AsyncClient

from fastgen_api import names
from fastgen_api.foreign_scaler import aim_of
from fastgen_operator.cluster import ALL_NAMESPACES, Cluster, ClusterError
from fastgen_operator.health import Metrics, Pulse, serve
from fastgen_operator.loop import Loop, relist
from fastgen_operator.queue import Key
from fastgen_operator.reconcile import Reconciler
from fastgen_operator.settings import Settings

CHILD_DELAY_SECONDS: Final = 0.2
"""Children change in bursts."""
CRD_RETRY_SECONDS: Final = 2.0

WATCHED_CHILDREN: Final = (
    ("", "v1", "serviceaccounts"),
    ("", "v1", "configmaps"),
    ("", "v1", "persistentvolumeclaims"),
    ("", "v1", "services"),
    ("", "v1", "pods"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("batch", "v1", "jobs"),
    ("apps", "v1", "deployments"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
)

log = logging.getLogger(__name__)


def registry_of(settings: Settings) -> kopf.OperatorRegistry:
    """All handlers of one operator process."""
    registry = kopf.OperatorRegistry()
    operator = _Operator(settings)
    kopf.on.login(registry=registry)(_login)
    kopf.on.startup(registry=registry)(operator.start)
    kopf.on.cleanup(registry=registry)(operator.stop)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)(operator.on_resource)
    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(
            group=group,
            version=version,
            plural=plural,
            id=plural,
            labels={names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER},
            registry=registry,
        )(operator.on_child)
    kopf.on.event("autoscaling", "v2", "horizontalpodautoscalers", registry=registry)(
        operator.on_autoscaler
    )
    return registry


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


class _Operator:
    """The parts of a running operator; they exist between `start` and `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pulse = Pulse()
        self._metrics = Metrics()
        self._tasks: list[asyncio.Task[None]] = []
        self._generations: dict[Key, int] = {}
        self._aims: dict[tuple[str | None, str], str] = {}
        """The FastGenDeployment that each foreign autoscaler means."""

    async def start(self, **_: Any) -> None:
        """Serves health, waits for the CRD, then starts the loop."""
        self._http = await serve(self._settings.http_port, self._pulse, self._metrics)
        self._cluster = Cluster(AsyncClient(), self._pulse.answer)
        reconciler = Reconciler(self._cluster, self._settings)
        self._loop = Loop(reconciler.reconcile, self._pulse, self._metrics)
        # Kopf looks for resource kinds once, after this.
        await self._wait_for_crd()
        self._tasks = [
            asyncio.create_task(self._loop.run(), name="reconcile loop"),
            asyncio.create_task(relist(self._keys, self._loop.ask), name="relist"),
        ]

    async def stop(self, **_: Any) -> None:
        """Ends the tasks and closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()
        await self._http.cleanup()

    async def on_resource(
        self, namespace: str | None, name: str, event: Mapping[str, Any], **_: Any
    ) -> None:
        """A FastGenDeployment came, changed or went; the generation counts changes of its spec."""
        if not namespace:
            return
        key = (namespace, name)
        generation = event["object"].get("metadata", {}).get("generation", 0)
        changed = self._generations.get(key) != generation
        if event["type"] == "DELETED":
            self._generations.pop(key, None)
        else:
            self._generations[key] = generation
        self._loop.ask(key, changed=changed)

    async def on_child(self, namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        """A child came, changed or went."""
        owner = labels.get(names.DEPLOYMENT_LABEL)
        if namespace and owner:
            self._loop.ask((namespace, owner), CHILD_DELAY_SECONDS)

    async def on_autoscaler(
        self, namespace: str | None, name: str, event: Mapping[str, Any], **_: Any
    ) -> None:
        """Somebody's autoscaler came, changed or went: who gave way to it, or now has to?"""
        aimed = aim_of(event["object"]) if event["type"] != "DELETED" else None
        before = self._aims.pop((namespace, name), None)
        if aimed:
            self._aims[namespace, name] = aimed
        for deployment in {aimed, before}:
            if namespace and deployment:
                self._loop.ask((namespace, deployment))

    async def _keys(self) -> list[Key]:
        found: list[Key] = []
        for namespace in self._settings.namespaces or (ALL_NAMESPACES,):
            for resource in await self._cluster.list(names.KIND, namespace):
                metadata = resource["metadata"]
                found.append((metadata["namespace"], metadata["name"]))
        return found

    async def _wait_for_crd(self) -> None:
        while True:
            self._pulse.tick()
            try:
                await self._keys()
            except ClusterError as error:
                log.warning(
                    "waiting for the API server to serve our kind", extra={"why": str(error)}
                )
                await asyncio.sleep(CRD_RETRY_SECONDS)
            else:
                return
