"""The parts of a running operator, and what Kopf does for it: the process from start to end.

Kopf watches nothing: `watch.Watch` lives with objects that Kopf's watches die of.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import kopf

from fastgen_api import names
from fastgen_operator.bonds import Bond, touched
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.connection import connect
from fastgen_operator.health import Metrics, Pulse, serve
from fastgen_operator.kinds import WATCHED_KINDS
from fastgen_operator.loop import Loop, relist
from fastgen_operator.queue import Key
from fastgen_operator.reconcile import Reconciler
from fastgen_operator.settings import Settings
from fastgen_operator.shelf import HistoryError, Shelf
from fastgen_operator.store import Store
from fastgen_operator.watch import Ending, Watch

CHILD_DELAY_SECONDS: Final = 0.2
"""Children change in bursts."""
CRD_RETRY_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


def registry_of(operator: "Operator") -> kopf.OperatorRegistry:
    """All handlers of one operator process."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    # A port that is taken is seen when the process ends, not when it waits.
    kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT, registry=registry)(operator.start)
    kopf.on.cleanup(registry=registry)(operator.stop)
    return registry


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


class Operator:
    """The parts of a running operator; its tasks exist between `start` and `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pulse = Pulse()
        self._metrics = Metrics()
        self._store = Store(settings.namespaces)
        self._bonds: dict[Key, Bond] = {}
        """How each FastGenDeployment was tied to others when it was last news."""
        self._resources: list[Watch] = []
        """The watches of FastGenDeployments."""
        self._watches: list[Watch] = []
        """All watches."""
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = "waiting for the API server"
        """What a fresh process still waits for; empty: nothing."""
        for kind in (names.KIND, *WATCHED_KINDS):
            self._metrics.known.labels(kind).set_function(partial(self._store.count, kind))

    async def start(self, **_: Any) -> None:
        """Serves health, waits for the CRD, then starts watches and loop."""
        self._connection = connect(
            self._metrics.count_request, self._settings.watch_silence_seconds
        )
        self._cluster = Cluster(self._connection.requests, self._pulse.answer, self._store)
        reconciler = Reconciler(self._cluster, self._settings)
        self._loop = Loop(reconciler.reconcile, self._pulse, self._metrics)
        self._http = await serve(
            self._settings.http_port, self.complaint, self.unreadiness, self._metrics
        )
        self._watches = [self._watch(shelf) for shelf in self._store.shelves]
        self._resources = [each for each in self._watches if each.shelf.kind == names.KIND]
        await self._wait_for_crd()
        for watch in self._watches:
            self._begin(watch.run(), f"watch of {watch.shelf.kind} in {watch.shelf.scope}")
        self._begin(self._run(), "reconcile loop")

    async def stop(self, **_: Any) -> None:
        """Ends the tasks and closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        await self._http.cleanup()

    def ask_resource(self, key: Key) -> None:
        """A FastGenDeployment came, changed or went: those that it shares something with, too."""
        namespace, name = key
        bonds = self._store.bonds(namespace)
        before, after = self._bonds.pop(key, None), bonds.get(name)
        if after is not None:
            self._bonds[key] = after
        # The generation counts changes of its spec.
        changed = after is not None and (before is None or before.generation != after.generation)
        self._loop.ask(key, changed=changed)
        for other in touched(name, before, after, bonds):
            self._loop.ask((namespace, other), CHILD_DELAY_SECONDS)

    def _ask_child(self, key: Key) -> None:
        """There is news of a child; those of a balancer concern all that share it."""
        for each in dict.fromkeys((key, *self._store.sharers(key))):
            self._loop.ask(each, CHILD_DELAY_SECONDS)

    def complaint(self) -> str:
        """What only a fresh process would mend; empty: nothing."""
        now = time.monotonic()
        return (
            self._pulse.complaint()
            or self._loop.complaint()
            or next(filter(None, (watch.complaint(now) for watch in self._watches)), "")
            or next(
                (f"the task '{task.get_name()}' ended" for task in self._tasks if task.done()), ""
            )
        )

    def unreadiness(self) -> str:
        """What keeps the operator from its work; empty: nothing."""
        refused = (
            f"{watch.shelf.kind}: {watch.refusal}" for watch in self._watches if watch.refusal
        )
        return self._starting or next(refused, "")

    def _watch(self, shelf: Shelf) -> Watch:
        return Watch(
            shelf,
            self._cluster,
            self._connection.watches,
            ask=self.ask_resource if shelf.kind == names.KIND else self._ask_child,
            served=self._ask_all,
            ended=self._count_end,
        )

    def _count_end(self, kind: str, ending: Ending) -> None:
        self._metrics.watch_ends.labels(kind, ending).inc()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _run(self) -> None:
        """Reconciles once it is known what there is."""
        self._starting = "listing what there is"
        while not all(watch.is_settled for watch in self._watches):
            self._pulse.tick()
            await asyncio.sleep(SETTLE_SECONDS)
        self._starting = ""
        await asyncio.gather(self._loop.run(), relist(self._list_resources, self._loop.ask))

    def _ask_all(self) -> None:
        for key in self._keys():
            self._loop.ask(key)

    def _keys(self) -> Sequence[Key]:
        return [key for watch in self._resources for key in watch.shelf.versions()]

    async def _list_resources(self) -> Sequence[Key]:
        """Lists all FastGenDeployments; asks for those with news, returns all.

        Raises ClusterError when no namespace could be listed.
        """
        failures: list[ClusterError] = []
        for watch in self._resources:
            try:
                await watch.relist()
            except HistoryError as error:
                failures.append(ClusterError(0, str(error)))
            except ClusterError as error:
                failures.append(error)
                log.warning("list failed", extra={"scope": watch.shelf.scope, "why": str(error)})
        if len(failures) == len(self._resources):
            raise failures[0]
        return self._keys()

    async def _wait_for_crd(self) -> None:
        while True:
            self._pulse.tick()
            try:
                await self._list_resources()
            except ClusterError as error:
                self._starting = f"waiting for the API server to serve our kind: {error}"
                log.warning(self._starting)
                await asyncio.sleep(CRD_RETRY_SECONDS)
            else:
                return
