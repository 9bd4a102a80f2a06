"""What `spec.rollout` declares, in a Deployment's terms."""

from fastgen_api.spec import KubernetesObject, Rollout, RolloutStrategy


def rolling_update(rollout: Rollout) -> KubernetesObject:
    """The declared strategy as a Deployment has it."""
    if rollout.strategy is not RolloutStrategy.IN_PLACE:
        return {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    # Kubernetes refuses two zeros.
    unavailable = 1 if is_zero(rollout.max_unavailable) else rollout.max_unavailable
    return {"maxSurge": 0, "maxUnavailable": unavailable}


def is_zero(share: int | str) -> bool:
    """Whether a number or percentage of replicas is none of them."""
    return str(share).rstrip("%").strip("0") == ""


def unavailable_of(rollout: Rollout, wanted: int) -> int:
    """Most replicas that a rollout stops before others have taken their place."""
    declared = rolling_update(rollout)["maxUnavailable"]
    if isinstance(declared, int):
        return declared
    rounded = int(declared.rstrip("%")) * wanted // 100
    # As Kubernetes does where a small percentage would allow nothing.
    return max(rounded, 1) if rollout.strategy is RolloutStrategy.IN_PLACE else rounded
