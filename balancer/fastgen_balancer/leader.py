"""The autoscaler: in the one picker process that holds the lease, reads, decides and acts."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import OwnerReference
from prometheus_client import CollectorRegistry

from fastgen_api import names
from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.spec import ScalingMode
from fastgen_balancer.autoscaler_metrics import AutoscalerMetrics
from fastgen_balancer.decision import Recommendation, count_of
from fastgen_balancer.deployment_access import Deployment, DeploymentAccess, UnreadableError
from fastgen_balancer.deployment_status import (
    DISABLED,
    Report,
    Stance,
    lasts,
    next_status,
    scaling_active,
    slo_met,
    slo_status,
)
from fastgen_balancer.heritage import Heritage
from fastgen_balancer.lack import lack_of
from fastgen_balancer.lease import TIMING, Leadership, Timing
from fastgen_balancer.memo_store import MemoStore
from fastgen_balancer.prometheus import read_metrics
from fastgen_balancer.promql import Selector, Windows
from fastgen_balancer.recommend import recommend
from fastgen_balancer.restraint import Restraint, ScalerWatch, restrain, restraint_of
from fastgen_balancer.scaling_policy import Policy, policy_of
from fastgen_balancer.signals import LocalSignals, MetricSignals, Signals, Unknown
from fastgen_balancer.term import State, after, begin_again

TICK_SECONDS: Final = 2.0
READ_SECONDS: Final = 5.0
WAKING_SECONDS: Final = 1.0
"""Longest wait for Prometheus while requests wait for a first replica."""

log = logging.getLogger(__name__)

API_ERRORS: Final = (ApiError, httpx2.HTTPError, TimeoutError)


async def lead(
    client: AsyncClient,
    namespace: str,
    name: str,
    identity: str,
    local_signals: Callable[[], Awaitable[LocalSignals]],
    prometheus_url: str | None,
    *,
    registry: CollectorRegistry,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    tick_seconds: float = TICK_SECONDS,
    windows: Windows | None = None,
    timing: Timing = TIMING,
) -> None:
    """Scales the FastGenDeployment while this process holds its lease, until it is cancelled.

    `identity` is the pod's name; `pause` waits for the next decision, at most so many seconds.
    Errors of the API server and of Prometheus are lived with.
    """
    access = DeploymentAccess(client, name, namespace, identity)
    first = await _first_read(access, tick_seconds)
    # A container that restarts in the same pod is another contender.
    contender = f"{identity}_{uuid.uuid4().hex[:8]}"
    owner = OwnerReference(names.API_VERSION, names.KIND, name, first.uid)
    lease = names.balancer_name(name)
    leadership = Leadership(client, namespace, lease, contender, owner=owner, timing=timing)
    store = MemoStore(client, namespace, names.memo_name(name), contender, owner)
    heritage = Heritage(leadership, store)
    leadership.before_release = heritage.leave
    metrics = AutoscalerMetrics(registry, name, namespace)
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as group:
        watch = ScalerWatch(name)
        group.create_task(watch.run(client, namespace))
        # Nothing is decided against another autoscaler that is only not known yet.
        await watch.first_list(READ_SECONDS)
        autoscaler = Autoscaler(
            access,
            leadership,
            heritage,
            http,
            local_signals,
            prometheus_url,
            windows or Windows(),
            metrics,
            lambda: watch.scalers,
        )
        group.create_task(leadership.run())
        group.create_task(autoscaler.run(tick_seconds, pause))


async def _first_read(access: DeploymentAccess, tick_seconds: float) -> Deployment:
    while True:
        try:
            return await access.read()
        except (*API_ERRORS, UnreadableError) as error:
            log.warning("the FastGenDeployment cannot be read", extra={"error": _text(error)})
        await asyncio.sleep(tick_seconds)


class Autoscaler:
    """Ticks while it leads; begins with a new memory each time that it comes to lead."""

    def __init__(
        self,
        access: DeploymentAccess,
        leadership: Leadership,
        heritage: Heritage,
        http: httpx2.AsyncClient,
        local_signals: Callable[[], Awaitable[LocalSignals]],
        prometheus_url: str | None,
        windows: Windows,
        metrics: AutoscalerMetrics,
        scalers: Callable[[], tuple[ForeignScaler, ...]],
    ) -> None:
        self._access = access
        self._leadership = leadership
        self._heritage = heritage
        self._http = http
        self._local_signals = local_signals
        self._prometheus_url = prometheus_url
        self._windows = windows
        self._metrics = metrics
        self._scalers = scalers
        self._state: State | None = None

    async def run(self, tick_seconds: float, pause: Callable[[float], Awaitable[None]]) -> None:
        while True:
            leads = self._leadership.leads
            self._metrics.leads(leads)
            if leads:
                try:
                    await self.tick(time.time())
                except (*API_ERRORS, UnreadableError) as error:
                    log.warning("a tick failed", extra={"error": _text(error)})
                except Exception:
                    # A fault in here must not end the process that carries the requests.
                    log.exception("a tick failed")
            else:
                self._state = None
            await pause(tick_seconds)

    async def tick(self, now: float) -> None:
        """Reads, decides, acts and reports once; `now` in seconds since the epoch."""
        async with asyncio.timeout(READ_SECONDS):
            deployment = await self._access.read()
        if deployment.deleted:
            return
        mode = deployment.spec.scaling.mode
        if self._state is None or not self._heritage.is_own:
            # A lead that was lost and won again between two ticks is another one, too.
            self._state = None
            self._state = await self._heritage.take(deployment, now)
        elif self._state.mode is not mode:
            self._state = begin_again(self._state, deployment, now)
        if mode is ScalingMode.DISABLED:
            await self._write_status(deployment, DISABLED, now)
            return
        policy = policy_of(deployment.spec, deployment.status.get("coldStartSeconds"))
        local = await self._local_signals()
        metrics = await self._read_metrics(deployment, local)
        signals = Signals(
            deployment.spec.replicas,
            local,
            metrics,
            _condition_status(deployment, names.Condition.CAPACITY_BLOCKED) == "True",
        )
        decision, memory = recommend(signals, policy, self._state.memory, now)
        restraint = self._restraint(deployment)
        decision = restrain(decision, deployment.spec.replicas, restraint)
        self._state = after(self._state, memory, decision, restraint, now)
        if not self._heritage.is_own:
            return
        self._metrics.decided(decision, memory.reversals)
        log.debug("decided", extra={"rule": decision.rule, "replicas": decision.replicas})
        scaled = False
        may_scale = mode is ScalingMode.AUTO and restraint is None
        if may_scale and decision.replicas != deployment.spec.replicas:
            scaled = await self._scale(deployment, decision)
        await self._heritage.decided(self._state, now)
        report = self._state.report
        # A short loss of the signals is no news.
        if scaled or restraint or report.stance is not Stance.BLIND or lasts(report, now):
            told = self._report(deployment, signals, decision, policy)
            await self._write_status(deployment, replace(told, scaled=scaled), now)

    async def _read_metrics(
        self, deployment: Deployment, local: LocalSignals
    ) -> MetricSignals | Unknown:
        url = deployment.spec.scaling.prometheus.url or self._prometheus_url
        selector = Selector(self._access.name, self._access.namespace)
        # A first replica comes for those who wait, whatever Prometheus says.
        wakes = deployment.spec.replicas == 0 and local.queued_requests > 0
        patience = WAKING_SECONDS if wakes else None
        return await read_metrics(self._http, url, selector, self._windows, patience)

    def _restraint(self, deployment: Deployment) -> Restraint | None:
        if deployment.spec.scaling.mode is not ScalingMode.AUTO:
            return None
        return restraint_of(deployment.status, self._scalers(), self._access.name)

    async def _scale(self, deployment: Deployment, decision: Recommendation) -> bool:
        """Whether it was written; an Event tells of it."""
        before, after = deployment.spec.replicas, decision.replicas
        if not self._may_write():
            return False
        async with asyncio.timeout(self._leadership.write_seconds):
            await self._access.scale(deployment, after)
        log.info(
            "scaled",
            extra={"from": before, "to": after, "rule": decision.rule, "why": decision.message},
        )
        reason = "ScaledUp" if after > before else "ScaledDown"
        text = f"From {before} to {after} replicas, {decision.rule}: {decision.message}"
        await self._tell(deployment, reason, text)
        return True

    async def _tell(self, deployment: Deployment, reason: str, text: str) -> None:
        """An Event; without it what was done stays done."""
        try:
            async with asyncio.timeout(self._leadership.write_seconds):
                await self._access.tell(deployment, reason, text)
        except API_ERRORS as error:
            log.warning("the event could not be written", extra={"error": _text(error)})

    def _report(
        self, deployment: Deployment, signals: Signals, decision: Recommendation, policy: Policy
    ) -> Report:
        assert self._state is not None
        mode, metrics = deployment.spec.scaling.mode, signals.metrics
        met = _condition_status(deployment, names.Condition.SLO_MET)
        lack = lack_of(signals, policy)
        return Report(
            slo_met=slo_met(metrics, policy, met, lack),
            scaling_active=scaling_active(
                mode, lack, policy, self._state.report, self._state.restraint
            ),
            slo=None if isinstance(metrics, Unknown) else slo_status(metrics.long),
            decision=decision,
        )

    async def _write_status(self, deployment: Deployment, report: Report, now: float) -> None:
        assert self._state is not None
        memory = self._state.report
        status = next_status(deployment.status, report, deployment.generation, memory, now)
        if status is None or not self._may_write():
            return
        async with asyncio.timeout(self._leadership.write_seconds):
            await self._access.apply_status(deployment, status)
        self._state = replace(self._state, report=replace(memory, written_at=now))
        decision = report.decision
        if decision is None or report.scaled:
            return
        if status.get("lastDecision") != deployment.status.get("lastDecision"):
            held = "".join(f", {blocker}" for blocker in decision.blockers)
            text = f"{count_of(decision.replicas)}, {decision.rule}{held}: {decision.message}"
            await self._tell(deployment, "ScalingDecision", text)

    def _may_write(self) -> bool:
        """A write that begins now ends before another process may lead."""
        return self._leadership.seconds_left > 0


def _condition_status(deployment: Deployment, name: str) -> str:
    conditions = deployment.status.get("conditions") or ()
    return next((str(c.get("status")) for c in conditions if c.get("type") == name), "")


def _text(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return f"{error.status.code} {error.status.reason}"
    return str(error) if isinstance(error, UnreadableError) else type(error).__name__
