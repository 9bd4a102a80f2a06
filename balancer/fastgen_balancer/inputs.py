"""What a decision rests on, as `status.lastDecision.inputs` tells it."""

from fastgen_balancer.decision import Sight
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import MetricSignals


def inputs_of(sight: Sight, policy: Policy) -> tuple[tuple[str, str], ...]:
    """Names and figures; what is not known is left out. Rates in engine-seconds per second."""
    demand, judgement, metrics = sight.demand, sight.judgement, sight.metrics
    figures: dict[str, float | None] = {
        "replicas": sight.replicas,
        "readyReplicas": sight.ready,
        "queuedHere": sight.local.queued_requests,
        "inFlightHere": sight.local.in_flight_requests,
        "saturatedEndpoints": sight.local.saturated_endpoints,
        "freshReplicas": len(sight.readings),
        "capacityPerReplica": sight.most,
        "carriedPerReplica": sight.carried,
        "leadSeconds": policy.lead_seconds,
    }
    if demand is not None:
        figures |= {
            "demand": demand.total,
            "demandAhead": demand.ahead or None,
            "workDone": demand.done,
            "backlogSeconds": demand.backlog,
        }
    if isinstance(metrics, MetricSignals):
        figures["queuedRequests"] = metrics.queued_requests
    if judgement.good_ratio is not None:
        figures |= {"goodPercent": 100 * judgement.good_ratio, "samples": judgement.samples}
    told = {name: f"{round(value, 3):g}" for name, value in figures.items() if value is not None}
    if sight.lack is not None:
        told["metrics"] = sight.lack.reason
    return tuple(told.items())
