"""`spec.scaling.behavior` with the meaning that a HorizontalPodAutoscaler gives it.

Source: kubernetes pkg/controller/podautoscaler/horizontal.go, stabilizeRecommendationWithBehaviors
and convertDesiredReplicasWithBehaviorRate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastgen_api.spec import ScalingPolicy, ScalingRules

HPA_UP: Final = ScalingRules()
HPA_DOWN: Final = ScalingRules(
    stabilization_window_seconds=300,
    policies=(ScalingPolicy(type="Percent", value=100, period_seconds=15),),
)
"""The defaults of autoscaling/v2."""


@dataclass(frozen=True, slots=True)
class Wished:
    """A number of replicas that was wished for, and when for the last time."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of `spec.replicas`; delta None: of unknown size, made under an earlier leader."""

    at: float
    delta: int | None


def remember(
    history: Sequence[Wished], replicas: int, now: float, keep_seconds: float
) -> tuple[Wished, ...]:
    """Appends a wish, and keeps those that may yet be the highest or the lowest of a window.

    A later wish that is as high, or as low, outlasts an earlier one: nothing is lost, and no more
    than two wishes per number of replicas are kept.
    """
    kept = [Wished(now, replicas)]
    highest = lowest = replicas
    for wish in reversed(history):
        if wish.at <= now - keep_seconds:
            continue
        if not lowest <= wish.replicas <= highest:
            kept.append(wish)
            highest, lowest = max(highest, wish.replicas), min(lowest, wish.replicas)
    return tuple(reversed(kept))


def stabilise(
    current: int,
    wished: int,
    history: Sequence[Wished],
    up: ScalingRules,
    down: ScalingRules,
    now: float,
) -> int:
    """Up to the lowest, down to the highest wish within the window of that direction."""
    rise, fall = wished, wished
    for wish in history:
        if wish.at > now - up.stabilization_window_seconds:
            rise = min(rise, wish.replicas)
        if wish.at > now - down.stabilization_window_seconds:
            fall = max(fall, wish.replicas)
    if rise > current:
        return rise
    return min(current, fall)


def up_limit(current: int, changes: Sequence[Change], rules: ScalingRules, now: float) -> int:
    """The most replicas that the scale-up policies allow now."""
    return max(current, _limit(current, changes, rules, now, _raised, (max, min)))


def down_limit(current: int, changes: Sequence[Change], rules: ScalingRules, now: float) -> int:
    """The fewest replicas that the scale-down policies allow now."""
    return max(0, min(current, _limit(current, changes, rules, now, _lowered, (min, max))))


def _raised(start: int, policy: ScalingPolicy) -> int:
    if policy.type == "Pods":
        return start + policy.value
    return -(-start * (100 + policy.value) // 100)


def _lowered(start: int, policy: ScalingPolicy) -> int:
    if policy.type == "Pods":
        return start - policy.value
    return start * (100 - policy.value) // 100


def _limit(
    current: int,
    changes: Sequence[Change],
    rules: ScalingRules,
    now: float,
    moved: Callable[[int, ScalingPolicy], int],
    farthest_and_nearest: tuple[Callable[[list[int]], int], Callable[[list[int]], int]],
) -> int:
    if rules.select_policy == "Disabled":
        return current
    proposals = []
    for policy in rules.policies:
        deltas = [c.delta for c in changes if c.at > now - policy.period_seconds]
        known = [delta for delta in deltas if delta is not None]
        # After a change of unknown size the allowance counts as used up.
        proposals.append(
            moved(current - sum(known), policy) if len(known) == len(deltas) else current
        )
    farthest, nearest = farthest_and_nearest
    return nearest(proposals) if rules.select_policy == "Min" else farthest(proposals)
