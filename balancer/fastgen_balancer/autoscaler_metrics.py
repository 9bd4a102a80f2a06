"""What the autoscaler tells of itself at /metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from fastgen_api.names import Metric, MetricLabel
from fastgen_balancer.decision import Recommendation, Rule


class AutoscalerMetrics:
    """Whether this process leads, what it wants, and how often each rule decided."""

    def __init__(self, registry: CollectorRegistry, deployment: str, namespace: str) -> None:
        labels = {MetricLabel.DEPLOYMENT: deployment, MetricLabel.NAMESPACE: namespace}
        self._labels = labels
        self._desired = Gauge(
            Metric.DESIRED_REPLICAS,
            "Replicas that the autoscaler wants; only told by the leader.",
            tuple(labels),
            registry=registry,
        )
        self._leader = Gauge(
            Metric.LEADER,
            "1 in the process that decides.",
            tuple(labels),
            registry=registry,
        ).labels(**labels)
        self._decisions = Counter(
            Metric.DECISIONS.removesuffix("_total"),
            "Decisions by the rule that gave the number of replicas.",
            (*labels, "rule"),
            registry=registry,
        )
        for rule in Rule:
            self._decisions.labels(**labels, rule=rule.value)

    def leads(self, leads: bool) -> None:
        self._leader.set(1 if leads else 0)
        if not leads:
            self._desired.clear()

    def decided(self, decision: Recommendation) -> None:
        self._desired.labels(**self._labels).set(decision.replicas)
        self._decisions.labels(**self._labels, rule=decision.rule.value).inc()
