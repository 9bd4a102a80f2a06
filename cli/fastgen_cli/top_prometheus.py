"""The figures of `fastgen top` as a Prometheus has them."""

import asyncio
from collections import defaultdict
from typing import Any, Final

import httpx2

from fastgen_api.names import Metric, MetricLabel, Outcome
from fastgen_cli.errors import UserError
from fastgen_cli.top_sample import Figures

BY: Final = f"by ({MetricLabel.DEPLOYMENT}, {MetricLabel.NAMESPACE})"
COUNTED: Final = f'{{outcome!="{Outcome.EXCLUDED}"}}'
GOOD: Final = f'{{outcome="{Outcome.GOOD}"}}'
TIMEOUT_SECONDS: Final = 5.0


def _quantile(share: float) -> str:
    labels = f"le, {MetricLabel.DEPLOYMENT}, {MetricLabel.NAMESPACE}"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({Metric.TTFT}_bucket[1m])))"


QUERIES: Final = {
    "tokens_per_second": f"sum {BY} (rate({Metric.OUTPUT_TOKENS}[1m]))",
    "running": f"sum {BY} ({Metric.RUNNING_REQUESTS})",
    "waiting": f"sum {BY} ({Metric.WAITING_REQUESTS} or {Metric.QUEUED_REQUESTS})",
    "kv_usage": f"max {BY} ({Metric.KV_USAGE})",
    "ttft_p50_seconds": _quantile(0.50),
    "ttft_p95_seconds": _quantile(0.95),
    "good_percent": (
        f"100 * sum {BY} (rate({Metric.REQUESTS}{GOOD}[1m])) "
        f"/ sum {BY} (rate({Metric.REQUESTS}{COUNTED}[1m]))"
    ),
}
"""One query per figure, of all deployments at once."""


class NoPrometheusError(UserError):
    """The Prometheus that was named does not answer as one; the text says how."""


async def prometheus_figures(url: str) -> dict[tuple[str, str], Figures]:
    """The figures by namespace and name; raises NoPrometheusError."""
    async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as http:
        answers = await asyncio.gather(*(_ask(http, url, query) for query in QUERIES.values()))
    found: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, vector in zip(QUERIES, answers, strict=True):
        for item in vector:
            labels = item["metric"]
            value = float(item["value"][1])
            # A quantile without a request is no number.
            if value == value:
                key = (labels[MetricLabel.NAMESPACE], labels[MetricLabel.DEPLOYMENT])
                found[key][name] = value
    return {key: Figures(**values) for key, values in found.items()}


async def _ask(http: httpx2.AsyncClient, url: str, query: str) -> list[dict[str, Any]]:
    try:
        answer = await http.get(f"{url.rstrip('/')}/api/v1/query", params={"query": query})
        body = answer.json()
        return [each for each in body["data"]["result"] if MetricLabel.NAMESPACE in each["metric"]]
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        text = str(error) or type(error).__name__
        raise NoPrometheusError(f"No Prometheus answers at {url}: {text}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NoPrometheusError(
            f"{url} does not answer as a Prometheus does; check --prometheus-url."
        ) from error
