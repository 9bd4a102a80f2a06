"""One reading of a pod's /metrics, and what two of them tell."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from fastgen_api.names import Metric, MetricLabel, Outcome

GAUGES: Final = (
    Metric.RUNNING_REQUESTS,
    Metric.WAITING_REQUESTS,
    Metric.KV_USAGE,
    Metric.QUEUED_REQUESTS,
)
COUNTERS: Final = (Metric.OUTPUT_TOKENS,)
RATE_SECONDS: Final = 10.0
"""Token rates are those of the last seconds."""
LATENCY_SECONDS: Final = 60.0
"""Percentiles and shares are those of the last minute: few requests say little."""

Key = TypeVar("Key")
Buckets = Mapping[float, float]
"""Requests up to a bound in seconds, by the bound; cumulative."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one pod said of one deployment."""

    at_seconds: float
    """On a clock that only runs forward."""
    values: Mapping[str, float]
    """Gauges and counters by name."""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    ttft: Buckets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the pods of one deployment tell together; None: nobody said."""

    tokens_per_second: float | None = None
    running: float | None = None
    waiting: float | None = None
    """In the replicas and at the balancers."""
    kv_usage: float | None = None
    """Of the fullest replica, 0 to 1."""
    ttft_p50_seconds: float | None = None
    ttft_p95_seconds: float | None = None
    good_percent: float | None = None


def read_samples(text: str, namespace: str, at_seconds: float) -> dict[str, Sample]:
    """Reads the text format: what the pod says of each deployment of its namespace.

    A replica speaks of one, a balancer of all that it serves. Raises ValueError.
    """
    values: dict[str, dict[str, float]] = {}
    outcomes: dict[str, dict[str, float]] = {}
    ttft: dict[str, dict[float, float]] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            deployment = labels.get(MetricLabel.DEPLOYMENT)
            if deployment is None or labels.get(MetricLabel.NAMESPACE) != namespace:
                continue
            of_values = values.setdefault(deployment, {})
            if name in GAUGES or name in COUNTERS:
                of_values[name] = of_values.get(name, 0.0) + value
            elif name == Metric.REQUESTS:
                counts, outcome = outcomes.setdefault(deployment, {}), labels.get("outcome", "")
                counts[outcome] = counts.get(outcome, 0.0) + value
            elif name == f"{Metric.TTFT}_bucket":
                ttft.setdefault(deployment, {})[float(labels["le"])] = value
    return {
        each: Sample(at_seconds, values[each], outcomes.get(each, {}), ttft.get(each, {}))
        for each in values
    }


def figures(histories: Iterable[Sequence[Sample]], *, lifetime: bool = False) -> Figures:
    """The figures of a deployment from its pods' samples, each pod's oldest first.

    lifetime: latencies and shares of all requests since the pods began, not of the last minute.
    """
    known = [history for history in histories if history]
    newest = [history[-1] for history in known]
    spans = [_span(history, LATENCY_SECONDS, lifetime) for history in known]
    ttft = _total(_grown(first.ttft if first else {}, last.ttft) for first, last in spans)
    outcomes = _total(
        _grown(first.outcomes if first else {}, last.outcomes) for first, last in spans
    )
    waiting = [_sum(newest, name) for name in (Metric.WAITING_REQUESTS, Metric.QUEUED_REQUESTS)]
    waited = [each for each in waiting if each is not None]
    usages = [s.values[Metric.KV_USAGE] for s in newest if Metric.KV_USAGE in s.values]
    return Figures(
        tokens_per_second=_rate(known, Metric.OUTPUT_TOKENS),
        running=_sum(newest, Metric.RUNNING_REQUESTS),
        waiting=sum(waited) if waited else None,
        kv_usage=max(usages, default=None),
        ttft_p50_seconds=quantile(ttft, 0.50),
        ttft_p95_seconds=quantile(ttft, 0.95),
        good_percent=_good_percent(outcomes),
    )


def quantile(buckets: Buckets, share: float) -> float | None:
    """A quantile as Prometheus estimates it, seconds; None without a request.

    Above the highest finite bound it is that bound.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    below_bound, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            if bound == float("inf"):
                return below_bound
            return below_bound + (bound - below_bound) * (rank - below) / (buckets[bound] - below)
        below_bound, below = bound, buckets[bound]
    return below_bound


def _span(
    history: Sequence[Sample], seconds: float, lifetime: bool
) -> tuple[Sample | None, Sample]:
    """The oldest sample within so many seconds, and the newest; None: since the pod began."""
    last = history[-1]
    if lifetime:
        return None, last
    return next(s for s in history if last.at_seconds - s.at_seconds <= seconds), last


def _rate(histories: Iterable[Sequence[Sample]], name: str) -> float | None:
    """Growth per second over the last samples, all pods together."""
    rates = []
    for history in histories:
        first, last = _span(history, RATE_SECONDS, lifetime=False)
        if first is None or name not in last.values or last.at_seconds <= first.at_seconds:
            continue
        grown = _growth(first.values.get(name, 0.0), last.values[name])
        rates.append(grown / (last.at_seconds - first.at_seconds))
    return sum(rates) if rates else None


def _growth(first: float, last: float) -> float:
    # A counter that fell belongs to a process that began anew.
    return last - first if last >= first else last


def _grown(first: Mapping[Key, float], last: Mapping[Key, float]) -> dict[Key, float]:
    fell = any(last[key] < first.get(key, 0.0) for key in last)
    return {key: value - (0.0 if fell else first.get(key, 0.0)) for key, value in last.items()}


def _total(parts: Iterable[Mapping[Key, float]]) -> dict[Key, float]:
    totals: defaultdict[Key, float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            totals[key] += value
    return dict(totals)


def _sum(samples: Iterable[Sample], name: str) -> float | None:
    found = [sample.values[name] for sample in samples if name in sample.values]
    return sum(found) if found else None


def _good_percent(outcomes: Mapping[str, float]) -> float | None:
    """Good requests among those that count."""
    counted = sum(value for name, value in outcomes.items() if name != Outcome.EXCLUDED)
    return 100.0 * outcomes.get(Outcome.GOOD, 0.0) / counted if counted else None
