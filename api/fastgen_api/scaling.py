"""What a spec says of the number of its replicas."""

from fastgen_api.spec import ScalingMode, Spec


def replicas_wanted(spec: Spec) -> int:
    """Replicas that the replica Deployment gets: clamped to the bounds only when we scale it."""
    if spec.scaling.mode is not ScalingMode.AUTO:
        return spec.replicas
    return max(spec.scaling.min_replicas, min(spec.scaling.max_replicas, spec.replicas))


def hold_seconds(spec: Spec) -> int:
    """How long a request waits for a first replica; 0: it does not.

    Whoever scales: with minReplicas 0 another autoscaler may bring the replica.
    """
    scaling = spec.scaling
    return scaling.scale_to_zero.hold_seconds if scaling.min_replicas == 0 else 0


def wakes(spec: Spec) -> bool:
    """Whether the autoscaler brings the first replica for a request that waits for one."""
    return spec.scaling.mode is ScalingMode.AUTO and spec.scaling.min_replicas == 0
