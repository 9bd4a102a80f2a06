"""Words for what the API tells in one: rules, blockers, field managers, times and sizes."""

from typing import Final

from fastgen_api import names

RULES: Final = {
    "FromZero": "requests are held until the first replica comes",
    "ToZero": "nothing has arrived or run for scaleToZero.idleSeconds",
    "BelowMinimum": "fewer replicas existed than minReplicas asks for",
    "AboveMaximum": "more replicas existed than maxReplicas allows",
    "QueueAtBalancer": "requests queue at the balancer",
    "EndpointsSaturated": "every replica has more requests than it can run",
    "DemandAboveCapacity": "more work is asked for than the ready replicas can do",
    "SLOMissedSaturated": "the SLO is missed and the replicas have more to do than they can",
    "SLOMissedAtNewLoad": "the SLO is missed at a load per replica that was never carried before",
    "SLOInfeasible": "the SLO is missed although no replica is busy: more replicas would not help",
    "DemandFitsFewer": "fewer replicas carry what is asked for",
    "Steady": "the present number fits the load",
    "FewSamples": "too few requests ended lately to judge the SLO by",
    "NoSignal": "the metrics are missing or too old, so the number stays as it is",
}
"""Why a rule fired, by `status.lastDecision.rule`."""

BLOCKERS: Final = {
    "StabilizationWindow": (
        "spec.scaling.behavior asks that the lower load lasts for its stabilizationWindowSeconds"
    ),
    "ScalingPolicy": "the policies of spec.scaling.behavior allow no larger step at once",
    "PendingReplicas": "replicas asked for earlier are not ready yet and count as supply",
    "StuckReplicas": "replicas do not become ready, and more of them would not either",
    "BacklogShrinks": "the backlog is gone before another replica could help",
    "CapacityBlocked": "no node takes the pods that are missing, nor would one take more",
    "Tolerance": "the demand differs by no more than the tolerance of spec.scaling.behavior",
    "Flapping": "the number went up and down within the hour, so fewer must do for longer",
    "MaxReplicas": "spec.scaling.maxReplicas is reached",
    "Frozen": "whoever runs the cluster has frozen all scaling",
    "ForeignScaler": "another autoscaler scales this FastGenDeployment",
}
"""What held a decision back, by an item of `status.lastDecision.blockers`."""

MANAGERS: Final = {
    names.BALANCER_MANAGER: "the autoscaler",
    names.OPERATOR_MANAGER: "the operator",
    "kube-controller-manager": "a HorizontalPodAutoscaler",
    "horizontal-pod-autoscaler": "a HorizontalPodAutoscaler",
    "helm": "Helm",
    "argocd-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
}
"""Who a field manager is; kubectl's begin with its name, others are told by their own."""

UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def manager_words(manager: str) -> str:
    """Who wrote a field."""
    if known := MANAGERS.get(manager):
        return f"{known} ({manager})"
    if manager.startswith("kubectl"):
        return f"somebody with {manager.replace('-', ' ', 1)}"
    return manager


def duration(seconds: int) -> str:
    """A length of time by its largest unit, such as `3 min`."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def ago(seconds: int | None) -> str:
    """A point in time; empty when it is not known."""
    if seconds is None:
        return ""
    return "just now" if seconds < 5 else f"{duration(seconds)} ago"


def gigabytes(size_bytes: int) -> str:
    """A size, such as `16.1 GB`."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"


def plural(count: int, word: str) -> str:
    """A number of things."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
