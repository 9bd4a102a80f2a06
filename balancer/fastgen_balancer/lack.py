"""What is missing for a decision that lets replicas go: the reasons and sentences of `NoSignal`.

docs/scaling.md has the table of them. Sentences hold no number that always moves: they are told in
a condition.
"""

from fastgen_balancer.capacity import fresh
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import MetricSignals, Signals, Unknown


def lack_of(signals: Signals, policy: Policy) -> Unknown | None:
    """Why the metrics say too little; None when they say enough."""
    metrics = signals.metrics
    if isinstance(metrics, Unknown):
        return metrics
    if metrics.not_numbers:
        names = ", ".join(metrics.not_numbers)
        return Unknown("NotANumber", f"Prometheus has no number for {names}")
    if metrics.queued_requests is None:
        return Unknown("PartialMetrics", "Prometheus has no queue lengths of the balancer")
    if signals.replicas == 0:
        # No replica, no series of one: that is as it should be.
        return None
    return _of_replicas(signals, metrics, policy) or _of_fleet(metrics, policy)


def _of_replicas(signals: Signals, metrics: MetricSignals, policy: Policy) -> Unknown | None:
    ready = min(signals.local.ready_endpoints, signals.replicas)
    readings = fresh(metrics, policy)
    if not metrics.replicas:
        return Unknown("PartialMetrics", "Prometheus has no series of any replica")
    if not readings:
        text = (
            f"all samples of the replicas are older than {policy.stale_seconds:.0f} s: Prometheus "
            "does not scrape them any more, or its clock is wrong"
        )
        return Unknown("StaleMetrics", text)
    if len(readings) < ready:
        text = f"Prometheus has fresh samples of {len(readings)} of {ready} replicas"
        return Unknown("PartialMetrics", text)
    if any(r.running is None for r in readings):
        text = "Prometheus has no number of running requests for some replicas"
        return Unknown("PartialMetrics", text)
    return None


def _of_fleet(metrics: MetricSignals, policy: Policy) -> Unknown | None:
    if metrics.arriving is None or metrics.done is None:
        text = (
            "Prometheus has no engine-seconds of the replicas: they have only just come, or are "
            "of a version that does not tell them"
        )
        return Unknown("PartialMetrics", text)
    has_traffic = metrics.arriving > 0 or metrics.done > 0
    is_judged = policy.target_ratio is not None
    if is_judged and has_traffic and (metrics.short is None or metrics.long is None):
        return Unknown("PartialMetrics", "Prometheus has no outcomes of requests")
    return None
