"""What the three kinds of pods tell at /metrics, from their own code, without their processes."""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_balancer.autoscaler_metrics import AutoscalerMetrics
from fastgen_balancer.decision import Recommendation, Rule
from fastgen_balancer.exposition import expose
from fastgen_balancer.picker import Picker
from fastgen_balancer.roster import Entry, Roster
from fastgen_balancer.settings import Settings
from fastgen_operator import health
from fastgen_operator.watch import Ending
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.replica_load import ReplicaLoad, add_gauges

DEPLOYMENT: Final = "chat"
NAMESPACE: Final = "team"
SLO_OF_ALL: Final = SLO(
    time_to_first_token=TimeToFirstToken(milliseconds=500),
    time_per_output_token=TimePerOutputToken(milliseconds=50),
    token_gap=TokenGap(max_milliseconds=200),
)


@dataclass(frozen=True, slots=True)
class Exposition:
    """What one kind of pod tells."""

    pod: str
    families: tuple[Family, ...]


def expositions() -> tuple[Exposition, ...]:
    """Replica, balancer (the autoscaler's leader) and operator."""
    return (
        Exposition("replica", _families(_replica())),
        Exposition("balancer", _families(asyncio.run(_balancer()))),
        Exposition("operator", _families(_operator())),
    )


def exposed_name(family: Family) -> str:
    """The name as in `names.Metric`: counters with `_total`."""
    return family.name + ("_total" if family.type == "counter" else "")


def _families(text: bytes) -> tuple[Family, ...]:
    return tuple(_told(text_string_to_metric_families(text.decode())))


def _told(families: Iterable[Family]) -> Iterator[Family]:
    """Without the times at which counters began, which nobody reads."""
    return (family for family in families if not family.name.endswith("_created"))


def _replica() -> bytes:
    metrics = Metrics(DEPLOYMENT, NAMESPACE, SLO_OF_ALL)
    load = ReplicaLoad(1, 1, 10, 8, 100, 50, 16, 1.0, False)
    add_gauges(metrics, lambda: load)
    return metrics.render()


async def _balancer() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        picker = Picker(Path(folder), NAMESPACE)
        picker.serve(Roster((Entry(DEPLOYMENT, DEPLOYMENT, Settings()),)))
        registry = picker.members[DEPLOYMENT].scaling_registry = CollectorRegistry()
        autoscaler = AutoscalerMetrics(registry, DEPLOYMENT, NAMESPACE)
        autoscaler.leads(True)
        inputs = (("demand", "1.2"), ("capacityPerReplica", "0.8"))
        autoscaler.decided(Recommendation(2, Rule.STEADY, "as it is", inputs=inputs), 0)
        return expose(picker.registries())


def _operator() -> bytes:
    metrics = health.Metrics()
    metrics.count_request("GET", 200)
    metrics.known.labels("Deployment").set(3)
    for ending in Ending:
        metrics.watch_ends.labels("Deployment", ending).inc()
    return generate_latest(metrics.registry)
