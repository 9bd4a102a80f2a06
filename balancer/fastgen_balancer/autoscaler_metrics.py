"""What the autoscaler tells of itself at /metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from fastgen_api.names import Metric, MetricLabel
from fastgen_balancer.decision import Blocker, Recommendation, Rule


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
        self._blocked = Counter(
            Metric.BLOCKED_DECISIONS.removesuffix("_total"),
            "Decisions that did not go where their rule pointed, by what kept them.",
            (*labels, "blocker"),
            registry=registry,
        )
        for blocker in Blocker:
            self._blocked.labels(**labels, blocker=blocker.value)
        self._reversals = Counter(
            Metric.REVERSALS.removesuffix("_total"),
            "Times that the number of replicas went the other way than the time before.",
            tuple(labels),
            registry=registry,
        ).labels(**labels)
        self._num_reversals: int | None = None
        self._figures = {
            name: Gauge(metric, text, tuple(labels), registry=registry)
            for name, metric, text in (
                ("demand", Metric.DEMAND, "Engine-seconds per second that are asked for."),
                (
                    "capacityPerReplica",
                    Metric.CAPACITY,
                    "Engine-seconds per second that one replica is taken to carry.",
                ),
            )
        }

    def leads(self, leads: bool) -> None:
        self._leader.set(1 if leads else 0)
        if not leads:
            self._num_reversals = None
            for gauge in (self._desired, *self._figures.values()):
                gauge.clear()

    def decided(self, decision: Recommendation, reversals: int) -> None:
        """Tells of a decision; reversals: how many there have been under all leaders."""
        labels = self._labels
        self._desired.labels(**labels).set(decision.replicas)
        self._decisions.labels(**labels, rule=decision.rule.value).inc()
        for blocker in decision.blockers:
            self._blocked.labels(**labels, blocker=blocker.value).inc()
        if self._num_reversals is not None:
            self._reversals.inc(max(0, reversals - self._num_reversals))
        self._num_reversals = reversals
        inputs = dict(decision.inputs)
        for name, gauge in self._figures.items():
            # What is not known is no 0.
            if name in inputs:
                gauge.labels(**labels).set(float(inputs[name]))
            else:
                gauge.clear()
