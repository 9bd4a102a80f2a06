"""Reads what `fastgen top` shows, again and again."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_api.spec import KubernetesObject
from fastgen_cli.cluster_reads import NotInstalledError, Reader, Refusal
from fastgen_cli.errors import UserError
from fastgen_cli.explain_facts import Objects
from fastgen_cli.top_prometheus import NoPrometheusError, prometheus_figures
from fastgen_cli.top_rows import rows
from fastgen_cli.top_sample import LATENCY_SECONDS, Figures, Sample, figures, read_samples
from fastgen_cli.top_table import SPARK_WIDTH, Picture

MOST_PODS: Final = 100
"""Pods that are asked in one round; a larger fleet is Prometheus' to sum up."""
AT_ONCE: Final = 16
POD_TIMEOUT_SECONDS: Final = 3.0
ANNOTATION: Final = "prometheus.io/"

Key = tuple[str, str]
"""Namespace and name of a FastGenDeployment."""


@dataclass(slots=True)
class Watcher:
    """Keeps the last readings, since a rate needs two."""

    reader: Reader
    namespace: str | None
    """None: all."""
    prometheus_url: str | None
    lifetime: bool = False
    """Latencies are those of all requests: for one look."""
    _histories: dict[str, dict[Key, deque[Sample]]] = field(default_factory=dict)
    """By the pod's uid, and by what it speaks of: a shared balancer speaks of several."""
    _rates: dict[Key, deque[float]] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)
    """Namespaces whose pods may not be asked: nobody asks twice."""

    async def look(self, keys: str = "") -> Picture:
        """One screen; raises NoClusterError, NotInstalledError and UserError."""
        resources = await self._resources()
        found, source, is_degraded = await self._figures()
        for key, each in found.items():
            if each.tokens_per_second is not None:
                rates = self._rates.setdefault(key, deque(maxlen=SPARK_WIDTH))
                rates.append(each.tokens_per_second)
        now = datetime.now(UTC)
        return Picture(
            rows=rows(resources, found, now),
            scope=f"namespace {self.namespace}" if self.namespace else "all namespaces",
            now=now.astimezone(),
            source=source,
            is_degraded=is_degraded,
            rates={key: tuple(rates) for key, rates in self._rates.items()},
            keys=keys,
        )

    async def _resources(self) -> Objects:
        found = await self.reader.all(names.PLURAL, self.namespace)
        if not isinstance(found, Refusal):
            return found
        if found.code == 404:
            raise NotInstalledError
        way_out = (
            "name one with -n" if self.namespace is None else "ask for the cluster role `view`"
        )
        raise UserError(f"FastGenDeployments cannot be read: {found.message}; {way_out}.")

    async def _figures(self) -> tuple[dict[Key, Figures], str, bool]:
        """Figures by deployment, whence they come in a sentence, and whether some are missing."""
        if self.prometheus_url:
            try:
                found = await prometheus_figures(self.prometheus_url)
            except NoPrometheusError as error:
                return {}, f"Status only. {error}", True
            return found, f"Figures of the last minute, by {self.prometheus_url}.", False
        labels = f"{names.DEPLOYMENT_LABEL},{names.MANAGED_BY_LABEL}={names.OPERATOR_MANAGER}"
        pods = await self.reader.all("pods", self.namespace, labels)
        if isinstance(pods, Refusal):
            return {}, f"Status only: pods cannot be read: {pods.message}", True
        running = [pod for pod in pods if _is_asked(pod)]
        asked = [pod for pod in running if pod["metadata"]["namespace"] not in self._closed]
        refused = await self._ask(asked[:MOST_PODS])
        self._forget(running)
        grouped: dict[Key, list[deque[Sample]]] = {}
        for histories in self._histories.values():
            for key, history in histories.items():
                grouped.setdefault(key, []).append(history)
        found = {key: figures(each, lifetime=self.lifetime) for key, each in grouped.items()}
        return found, *_source(len(asked), refused, self._closed, self.lifetime)

    async def _ask(self, pods: Iterable[KubernetesObject]) -> list[Refusal]:
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(pod: KubernetesObject) -> Refusal | None:
            async with places:
                return await self._sample(pod)

        answers = await asyncio.gather(*(ask(pod) for pod in pods))
        return [each for each in answers if each is not None]

    async def _sample(self, pod: KubernetesObject) -> Refusal | None:
        """Keeps what a pod says now; returns why it said nothing."""
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{_port(pod)}/proxy/metrics"
        text = await self.reader.text(path, timeout_seconds=POD_TIMEOUT_SECONDS)
        if isinstance(text, Refusal):
            if text.is_forbidden:
                self._closed.add(namespace)
            return text
        try:
            samples = read_samples(text, namespace, time.monotonic())
        except ValueError:
            return Refusal(0, "its /metrics cannot be read")
        before = self._histories.get(metadata["uid"], {})
        # What it speaks of no more is dropped with this: a gauge would stand still for ever.
        histories = self._histories[metadata["uid"]] = {}
        for deployment, sample in samples.items():
            key = (namespace, deployment)
            # Twice as many as are needed at one reading a second.
            histories[key] = before.get(key) or deque(maxlen=round(2 * LATENCY_SECONDS))
            histories[key].append(sample)
        return None

    def _forget(self, running: Iterable[KubernetesObject]) -> None:
        """Drops what pods said that are gone: a gauge of theirs would stand still for ever."""
        kept = {pod["metadata"]["uid"] for pod in running}
        for uid in self._histories.keys() - kept:
            del self._histories[uid]


def _is_asked(pod: KubernetesObject) -> bool:
    """Whether the pod may tell of load; one that goes away still does."""
    role = pod["metadata"]["labels"].get(names.COMPONENT_LABEL)
    return role in (Component.REPLICA, Component.BALANCER) and _has_started(pod)


def _has_started(pod: KubernetesObject) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (each.get("state") or {}) for each in statuses)


def _port(pod: KubernetesObject) -> str:
    """Where the pod says that Prometheus finds it."""
    told = (pod["metadata"].get("annotations") or {}).get(f"{ANNOTATION}port")
    return str(told or Port.BALANCER_HTTP)


def _source(
    asked: int, refused: list[Refusal], closed: set[str], lifetime: bool
) -> tuple[str, bool]:
    """Whence the figures come, and whether some are missing."""
    if closed:
        where = f" of {', '.join(sorted(closed))}"
        return (
            f"Status only{where}: live figures need the right to get pods/proxy, which the cluster "
            "role `edit` holds; or give --prometheus-url.",
            True,
        )
    if asked > MOST_PODS:
        return (
            f"Figures of {MOST_PODS} of {asked} pods: name a namespace, or --prometheus-url.",
            True,
        )
    if refused:
        why = refused[0].message
        return f"{len(refused)} of {asked} pods did not tell their figures: {why}", True
    span = "since the replicas began" if lifetime else "of the last minute"
    return f"TTFT and GOOD {span}, by the pods' own /metrics.", False
