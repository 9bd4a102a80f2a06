"""The data plane's metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fastgen_api.names import Metric, MetricLabel, Outcome
from fastgen_balancer.pick import Refusal

PICKED = "picked"
NAMELESS = (Refusal.UNKNOWN_MODEL, Refusal.MISSING_MODEL)
"""Refusals of what is for no deployment."""
BUCKETS = (
    0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5,
    3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip


class Metrics:
    """Counts what happened; gauges are read when they are scraped."""

    def __init__(self, registry: CollectorRegistry, deployment: str, namespace: str) -> None:
        self._labels = {MetricLabel.DEPLOYMENT: deployment, MetricLabel.NAMESPACE: namespace}
        self._registry = registry
        names = tuple(self._labels)
        self._requests = Counter(
            Metric.REQUESTS.removesuffix("_total"),
            "Requests by how they ended, those that no replica counts.",
            (*names, "outcome"),
            registry=registry,
        )
        for outcome in Outcome:
            self._requests.labels(**self._labels, outcome=outcome.value)
        self._picks = _picks(registry)
        self._picked = self._picks.labels(**self._labels, result=PICKED)
        for result in (each.value for each in Refusal if each not in NAMELESS):
            self._picks.labels(**self._labels, result=result)
        self._retries = Counter(
            Metric.RETRIES.removesuffix("_total"),
            "Attempts that were repeated on another replica.",
            names,
            registry=registry,
        ).labels(**self._labels)
        self._ejections = Counter(
            Metric.EJECTIONS.removesuffix("_total"),
            "Endpoints that were left out for a while, by why.",
            (*names, "reason"),
            registry=registry,
        )
        for is_slow in (False, True):
            self._ejections.labels(**self._labels, reason=_why(is_slow))
        self._first_byte = Histogram(
            Metric.FIRST_BYTE_SECONDS,
            "Time from a whole request to its answer's headers, which leave with the first token.",
            names,
            buckets=BUCKETS,
            registry=registry,
        ).labels(**self._labels)

    def gauge(self, name: str, help_: str, read: Callable[[], float]) -> None:
        """Exposes a number that `read` tells."""
        gauge = Gauge(name, help_, tuple(self._labels), registry=self._registry)
        gauge.labels(**self._labels).set_function(read)

    def picked(self) -> None:
        self._picked.inc()

    def refused(self, refusal: Refusal, *, counted: bool) -> None:
        """Counts a refusal; only one of a request for tokens says something about the SLO."""
        self._picks.labels(**self._labels, result=refusal.value).inc()
        if counted:
            is_ours = refusal not in (Refusal.TOO_LARGE, Refusal.MALFORMED)
            self.ended(Outcome.REFUSED if is_ours else Outcome.EXCLUDED)

    def ended(self, outcome: Outcome) -> None:
        self._requests.labels(**self._labels, outcome=outcome.value).inc()

    def retried(self, attempts: int) -> None:
        self._retries.inc(attempts)

    def ejected(self, *, is_slow: bool) -> None:
        self._ejections.labels(**self._labels, reason=_why(is_slow)).inc()

    def first_byte(self, seconds: float) -> None:
        self._first_byte.observe(seconds)


class UnplacedMetrics:
    """Counts what was refused without being for any deployment, whose label then is empty."""

    def __init__(self, registry: CollectorRegistry, namespace: str) -> None:
        self._labels = {MetricLabel.DEPLOYMENT: "", MetricLabel.NAMESPACE: namespace}
        self._picks = _picks(registry)

    def refused(self, refusal: Refusal) -> None:
        self._picks.labels(**self._labels, result=refusal.value).inc()


def _picks(registry: CollectorRegistry) -> Counter:
    return Counter(
        Metric.PICKS.removesuffix("_total"),
        "Answers to Envoy: picked, or the reason of the refusal.",
        (MetricLabel.DEPLOYMENT, MetricLabel.NAMESPACE, "result"),
        registry=registry,
    )


def _why(is_slow: bool) -> str:
    return "slow" if is_slow else "failing"
