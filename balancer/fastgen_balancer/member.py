"""One deployment as its balancer serves it: all that belongs to it alone, wired once."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry

from fastgen_api.names import Metric
from fastgen_balancer.dispatch import Dispatcher
from fastgen_balancer.endpoint_files import read_endpoints, write_endpoints
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Events, Fleet
from fastgen_balancer.load import LoadPoller
from fastgen_balancer.metrics import Metrics
from fastgen_balancer.quarantine import Quarantine
from fastgen_balancer.reception import Reception
from fastgen_balancer.settings import Settings
from fastgen_balancer.signals import LocalSignals
from fastgen_balancer.wake import Alarm

ENVOY_READS_SECONDS: Final = 0.5
"""Until Envoy has surely read a file that has changed, and acts by it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose requests these are."""

    deployment: str
    namespace: str


class Member:
    """A deployment's endpoints, queue, quarantine and metrics; needs a running event loop.

    Nothing of it is another's, so that what goes wrong with one deployment stays there.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.on_wait: Callable[[], None] = lambda: None
        """Called when a request begins to be held with no endpoint."""
        self.alarm = Alarm()
        """Wakes the autoscaler, where it runs in this process."""
        self.scaling_registry: CollectorRegistry | None = None
        """The autoscaler's, while it runs in this process."""
        self.synced = asyncio.Event()
        """The endpoints are known from whoever knows them, not from a predecessor."""
        self._directory = directory
        self._registry = CollectorRegistry()
        self.metrics = Metrics(self._registry, identity.deployment, identity.namespace)
        self.quarantine = Quarantine(clock)
        events = Events(self._note_ejection, self.quarantine.crashed)
        self.fleet = Fleet(clock, settings.max_concurrent_requests, events)
        self.dispatcher = Dispatcher(
            self.fleet, Random(), clock, settings.max_queued_requests, lambda: self.on_wait()
        )
        self.dispatcher.hold_seconds = settings.hold_seconds
        self.dispatcher.max_wait_seconds = settings.max_wait_seconds
        self.poller = LoadPoller(self.fleet, clock, self.dispatcher.pump)
        self.reception = Reception(
            self.dispatcher, self.fleet, self.quarantine, self.metrics, clock, lambda: self.settings
        )
        self._add_gauges()
        self._opening: asyncio.TimerHandle | None = None
        self._endpoints = read_endpoints(directory, identity.deployment)
        write_endpoints(directory, identity.deployment, self._endpoints)
        self._use()

    @property
    def name(self) -> str:
        """The deployment's."""
        return self.identity.deployment

    @property
    def has_synced(self) -> bool:
        return self.synced.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether no request is held or under way."""
        return self.dispatcher.queued == self.fleet.in_flight == 0

    def leave(self) -> None:
        """Waits for no replica any more: the deployment is not served here from now on."""
        self.set_settings(replace(self.settings, hold_seconds=0.0))

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Takes the whole truth about the endpoints, and passes it on to Envoy.

        A first replica gets no request before Envoy has surely heard of it, since there is no other
        that could take it.
        """
        self._endpoints = tuple(endpoints)
        write_endpoints(self._directory, self.name, self._endpoints)
        if self._opening is not None:
            return
        is_first = all(each.terminating for each in self.fleet.endpoints)
        if is_first and self._endpoints:
            loop = asyncio.get_running_loop()
            self._opening = loop.call_later(ENVOY_READS_SECONDS, self._open)
        else:
            self._open()

    def set_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.fleet.default_capacity = settings.max_concurrent_requests
        self.dispatcher.max_queued = settings.max_queued_requests
        self.dispatcher.hold_seconds = settings.hold_seconds
        self.dispatcher.max_wait_seconds = settings.max_wait_seconds
        self.dispatcher.pump()

    def registries(self) -> tuple[CollectorRegistry, ...]:
        """Whose metrics this deployment has here."""
        return (self._registry, *((self.scaling_registry,) if self.scaling_registry else ()))

    def signals(self) -> LocalSignals:
        """What the deployment's autoscaler may know of this pod."""
        return LocalSignals(
            queued_requests=self.dispatcher.queued,
            in_flight_requests=self.fleet.in_flight,
            ready_endpoints=len(self.fleet.candidates()),
            saturated_endpoints=self.fleet.saturated(),
        )

    def sweep(self) -> int:
        """Forgets requests whose end was never told; returns how many.

        Wakes the queue, since what makes room or ends its patience may be time alone.
        """
        lost = self.fleet.forget_lost()
        self.fleet.eject_slow()
        self.dispatcher.pump()
        return lost

    def end(self) -> None:
        """Asks its replicas nothing any more."""
        self._endpoints = ()
        self._use()

    async def close(self) -> None:
        """Ends what runs by itself."""
        if self._opening is not None:
            self._opening.cancel()
        await self.poller.close()

    def _open(self) -> None:
        self.synced.set()
        self._use()

    def _use(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self.fleet.set_endpoints(self._endpoints)
        self.poller.follow(self._endpoints)
        self.dispatcher.pump()

    def _note_ejection(self, name: str, is_slow: bool) -> None:
        self.metrics.ejected(is_slow=is_slow)
        told = {"endpoint": name, "slow": is_slow, "deployment": self.name}
        log.warning("endpoint ejected", extra=told)

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge(Metric.QUEUED_REQUESTS, "Requests held back.", lambda: self.dispatcher.queued)
        gauge(
            Metric.IN_FLIGHT_REQUESTS,
            "Requests sent to a replica and not ended.",
            lambda: self.fleet.in_flight,
        )
        gauge(
            Metric.ENDPOINTS,
            "Endpoints that may be picked.",
            lambda: len(self.fleet.candidates()),
        )
        gauge(
            Metric.QUARANTINED_PROMPTS,
            "Prompts that are refused since they were there when replicas crashed.",
            lambda: self.quarantine.convicted,
        )
