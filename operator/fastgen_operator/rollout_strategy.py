"""What `spec.rollout` declares, in a Deployment's terms."""

from fastgen_api.spec import KubernetesObject, Rollout, RolloutStrategy


def rolling_update(rollout: Rollout) -> KubernetesObject:
    """The declared strategy as a Deployment has it."""
    if rollout.strategy is not RolloutStrategy.IN_PLACE:
        return {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    # Kubernetes refuses two zeros.
    is_zero = str(rollout.max_unavailable).rstrip("%").strip("0") == ""
    return {"maxSurge": 0, "maxUnavailable": 1 if is_zero else rollout.max_unavailable}


def unavailable_of(rollout: Rollout, wanted: int) -> int:
    """Most replicas that a rollout stops before others have taken their place."""
    declared = rolling_update(rollout)["maxUnavailable"]
    if isinstance(declared, int):
        return declared
    rounded = int(declared.rstrip("%")) * wanted // 100
    # As Kubernetes does where a small percentage would allow nothing.
    return max(rounded, 1) if rollout.strategy is RolloutStrategy.IN_PLACE else rounded
