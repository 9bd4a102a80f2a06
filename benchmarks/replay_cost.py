"""What a step costs the replicas of `replay.py`, by what they counted in Prometheus."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from replay_cluster import NAME, NAMESPACE, ask_range, deployment
from replay_requests import LEAD, arrivals_of, send

from fastgen_balancer.promql import Selector
from fastgen_cli.simulate.measured import measured_cost, queries_of
from fastgen_cli.simulate.trace import Trace
from fastgen_cli.simulate.window import led_in
from fastgen_devcluster.cluster import Cluster
from fastgen_runtime.engine.latency import StepCost

SETTLE_SECONDS: Final = 3.0
"""From the last answer until Prometheus has scraped its steps."""
MEASURED: Final = (60, 0.5)
"""Requests behind the lead, and seconds between them: more than one replica carries, so that its
steps are as full and its CPU limit is as used up as in the window. The lead itself has too few
steps, and too few of them with several answers, to tell their parts apart."""
PAUSE_SECONDS: Final = 5.0

Answers = Sequence[Sequence[dict[str, Any]]]


def ask(cluster: Cluster, begin: float, end: float) -> Answers:
    """The replicas' counters between two Unix times."""
    url = cluster.prometheus_url or ""
    queries = queries_of(Selector(NAME, NAMESPACE))
    return [ask_range(url, query, begin, end) for query in queries]


def calibrate(cluster: Cluster, manifest: dict[str, Any], trace: Trace) -> StepCost:
    """What a step costs on this machine, from the first requests of a window, evenly spaced."""
    count, apart = MEASURED
    spaced = tuple(replace(one, at=number * apart) for number, one in enumerate(trace[:count]))
    with deployment(cluster, manifest) as url:
        begun = time.time()
        send(url, arrivals_of(led_in(spaced, LEAD[0], LEAD[1], PAUSE_SECONDS), seed=0))
        time.sleep(SETTLE_SECONDS)
        return measured_cost(ask(cluster, begun, time.time()))
