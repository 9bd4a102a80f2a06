"""The picker: everything that the balancer knows and decides, in one process."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from fastgen_api.names import Metric
from fastgen_balancer.access_log import AccessLog
from fastgen_balancer.dispatch import Dispatcher
from fastgen_balancer.endpoint_files import read_endpoints, write_endpoints
from fastgen_balancer.endpoint_picker import EndpointPicker
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.ext_proc import ExternalProcessor
from fastgen_balancer.fleet import Events, Fleet
from fastgen_balancer.load import LoadPoller
from fastgen_balancer.metrics import Metrics
from fastgen_balancer.quarantine import Quarantine
from fastgen_balancer.quarantine_share import Share
from fastgen_balancer.reception import Reception
from fastgen_balancer.settings import Settings
from fastgen_balancer.signals import LocalSignals

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose requests these are."""

    deployment: str
    namespace: str


class Picker:
    """The parts, wired together; needs a running event loop."""

    def __init__(self, directory: Path, identity: Identity, settings: Settings) -> None:
        clock = time.monotonic
        self.settings = settings
        self.on_wait: Callable[[], None] = lambda: None
        """Called when a request begins to be held with no endpoint."""
        self.scaling_registry: CollectorRegistry | None = None
        """The autoscaler's, while it runs in this process."""
        self._registry = CollectorRegistry()
        metrics = Metrics(self._registry, identity.deployment, identity.namespace)

        def note_ejection(name: str, is_slow: bool) -> None:
            metrics.ejected(is_slow=is_slow)
            log.warning("endpoint ejected", extra={"endpoint": name, "slow": is_slow})

        self.quarantine = Quarantine(clock)
        self.fleet = Fleet(
            clock, settings.max_concurrent_requests, Events(note_ejection, self.quarantine.crashed)
        )
        self.dispatcher = Dispatcher(
            self.fleet, Random(), clock, settings.max_queued_requests, lambda: self.on_wait()
        )
        self.dispatcher.hold_seconds = settings.hold_seconds
        self.poller = LoadPoller(self.fleet, clock, self.dispatcher.pump)
        metrics.gauge(Metric.QUEUED_REQUESTS, "Requests held back.", lambda: self.dispatcher.queued)
        metrics.gauge(
            Metric.IN_FLIGHT_REQUESTS,
            "Requests sent to a replica and not ended.",
            lambda: self.fleet.in_flight,
        )
        metrics.gauge(
            Metric.ENDPOINTS,
            "Endpoints that may be picked.",
            lambda: len(self.fleet.candidates()),
        )
        metrics.gauge(
            Metric.QUARANTINED_PROMPTS,
            "Prompts that are refused since they were there when replicas crashed.",
            lambda: self.quarantine.convicted,
        )
        self.share = Share({identity.deployment: self.quarantine}, clock)
        self._reception = Reception(
            self.dispatcher, self.fleet, self.quarantine, metrics, clock, lambda: self.settings
        )
        self._reception.spread = self.share.spread
        self.processor = ExternalProcessor(self._reception)
        self.access_log = AccessLog(self.fleet, self.dispatcher, self.quarantine, metrics)
        self.has_synced = False
        self._directory = directory

    def endpoint_picker(self) -> EndpointPicker:
        """What answers gateways; endpoints, load and queue are those of our own Envoy."""
        return EndpointPicker(self._reception, self.fleet, time.monotonic, Random())

    def begin_with_known(self) -> None:
        """Starts from what the last picker of this pod knew."""
        if known := read_endpoints(self._directory):
            self._use(known)

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Takes the whole truth about the endpoints, and passes it on to Envoy."""
        self.has_synced = True
        self._use(tuple(endpoints))

    def set_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.fleet.default_capacity = settings.max_concurrent_requests
        self.dispatcher.max_queued = settings.max_queued_requests
        self.dispatcher.hold_seconds = settings.hold_seconds
        self.dispatcher.pump()

    def registries(self) -> tuple[CollectorRegistry, ...]:
        """Whose metrics this process exposes."""
        return (self._registry, *((self.scaling_registry,) if self.scaling_registry else ()))

    def signals(self) -> LocalSignals:
        """What the autoscaler may know of this pod."""
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

    def _use(self, endpoints: tuple[Endpoint, ...]) -> None:
        write_endpoints(self._directory, endpoints)
        self.fleet.set_endpoints(endpoints)
        self.poller.follow(endpoints)
        self.dispatcher.pump()
