"""The dashboard that the chart installed, asked of the cluster's Prometheus while requests run."""

import asyncio
import json
import time
from typing import Any, Final

import dashboard
import httpx2
import pytest
from cluster_access import NAMESPACE, Kubernetes
from traffic import run_traffic

from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME: Final = "smollm2"
CHOSEN: Final = {
    "$deployment": NAME,
    "$namespace": NAMESPACE,
    "$__rate_interval": "30s",
    "$__range": "10m",
}
PATIENCE_SECONDS: Final = 90.0


def asked(text: str) -> str:
    """As Grafana asks it."""
    for variable, value in CHOSEN.items():
        text = text.replace(variable, value)
    return text


def numbers(prometheus: str, query: str) -> list[float]:
    """The values of an instant query that are numbers; a refused query raises."""
    answer = httpx2.get(f"{prometheus}/api/v1/query", params={"query": asked(query)})
    answer.raise_for_status()
    values = [float(item["value"][1]) for item in answer.json()["data"]["result"]]
    return [value for value in values if value == value]


def choices(prometheus: str, query: str) -> list[str]:
    """What a variable of the dashboard offers: `label_values(series, label)`."""
    series, label = asked(query).removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
    answer = httpx2.get(f"{prometheus}/api/v1/label/{label}/values", params={"match[]": series})
    answer.raise_for_status()
    return list(answer.json()["data"])


def installed(kubernetes: Kubernetes) -> dict[str, Any]:
    """The dashboard as Grafana's sidecar finds it."""
    where = ("-n", SYSTEM_NAMESPACE, "-l", "grafana_dashboard=1", "-o", "json")
    (found,) = json.loads(kubernetes.kubectl("get", "configmap", *where))["items"]
    return dict(json.loads(found["data"]["fastgen.json"]))


async def test_every_panel_has_data_while_requests_are_served(
    deployment: Kubernetes, url: str
) -> None:
    prometheus = deployment.cluster.prometheus_url
    if prometheus is None:
        pytest.skip("FASTGEN_PROMETHEUS_URL does not name a Prometheus")
    assert installed(deployment) == dashboard.built()
    waited_for = [
        (title, query.expression) for title, query in dashboard.queries() if not query.may_be_empty
    ]
    async with run_traffic(url, NAME, streams=2) as traffic:
        end = time.monotonic() + PATIENCE_SECONDS
        while waited_for and time.monotonic() < end:
            await asyncio.sleep(2)
            waited_for = [
                (title, query)
                for title, query in waited_for
                if not await asyncio.to_thread(numbers, prometheus, query)
            ]
        for _, query in dashboard.queries():
            numbers(prometheus, query.expression)
    assert waited_for == []
    assert traffic.failed == []
    offered = {each.name: each.query for each in dashboard.VARIABLES if each.query}
    assert NAMESPACE in choices(prometheus, offered["namespace"])
    assert NAME in choices(prometheus, offered["deployment"])
