"""Whether the operator lives, told over HTTP, and its Prometheus metrics."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fastgen_api.names import Metric

TICK_LIMIT_SECONDS: Final = 30.0
API_LIMIT_SECONDS: Final = 300.0
"""Relists happen each minute: five without any answer are worth a fresh process.

A refusal is an answer: a missing CRD or right is not mended by a restart.
"""
WATCH_LIMIT_SECONDS: Final = 300.0
"""A watch begins anew within a minute and a half of silence; that failing is worth the same."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pulse:
    """When the reconcile loop last ran and the API server last answered, by the monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    ticked: float = 0.0
    answered: float = 0.0

    def __post_init__(self) -> None:
        self.ticked = self.answered = self.clock()

    def tick(self) -> None:
        """The loop ran."""
        self.ticked = self.clock()

    def answer(self) -> None:
        """The API server answered."""
        self.answered = self.clock()

    def complaint(self) -> str:
        """What is wrong; empty: nothing."""
        now = self.clock()
        if now - self.ticked > TICK_LIMIT_SECONDS:
            return f"the reconcile loop has not run for {now - self.ticked:.0f} s"
        if now - self.answered > API_LIMIT_SECONDS:
            return f"the API server has not answered for {now - self.answered:.0f} s"
        return ""


class Metrics:
    """The operator's Prometheus metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconciles = Counter(
            Metric.RECONCILES.removesuffix("_total"),
            "Reconciles by how they ended.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("ok", "error"):
            self.reconciles.labels(outcome)
        self.seconds = Histogram(
            Metric.RECONCILE_SECONDS,
            "Duration of reconciles.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
            registry=self.registry,
        )
        self.queued = Gauge(
            Metric.QUEUED_DEPLOYMENTS,
            "FastGenDeployments whose reconcile is due and has not begun.",
            registry=self.registry,
        )
        self.watch_ends = Counter(
            Metric.WATCH_ENDS.removesuffix("_total"),
            "Ends of watches by kind and reason; expected: the API server ends each after a while.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.requests = Counter(
            Metric.API_REQUESTS.removesuffix("_total"),
            "Requests to the API server by method and status; 0: no answer.",
            ["method", "code"],
            registry=self.registry,
        )
        self.known = Gauge(
            Metric.KNOWN_OBJECTS,
            "Objects of the cluster that the operator keeps in memory.",
            ["kind"],
            registry=self.registry,
        )

    def count_request(self, method: str, code: int) -> None:
        """A request was answered, or not."""
        self.requests.labels(method, str(code)).inc()


async def serve(
    port: int, liveness: Callable[[], str], readiness: Callable[[], str], metrics: Metrics
) -> web.AppRunner:
    """Serves /healthz, /readyz and /metrics until the runner's `cleanup`; port 0 takes a free one.

    `liveness` and `readiness` say what is wrong; empty: nothing.
    """

    told = ""

    def answer(complaint: str) -> web.Response:
        return web.Response(status=503 if complaint else 200, text=complaint or "ok")

    async def healthz(_: web.Request) -> web.Response:
        nonlocal told
        complaint = liveness()
        if complaint != told:
            # The kubelet's events tell no more than the status of the answer.
            log.error("not healthy" if complaint else "healthy again", extra={"why": complaint})
            told = complaint
        return answer(complaint)

    async def readyz(_: web.Request) -> web.Response:
        return answer(liveness() or readiness())

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
