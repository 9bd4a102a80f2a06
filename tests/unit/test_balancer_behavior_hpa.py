"""`behavior` against the HorizontalPodAutoscaler's own algorithm, tick by tick.

The other side is written after kubernetes' pkg/controller/podautoscaler/horizontal.go:
stabilizeRecommendationWithBehaviors, convertDesiredReplicasWithBehaviorRate and what they call.
Its percentages are exact here; floats make 10 · 1.1 there a little more than 11, and round it up.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf, trunc

from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_strategies import rules

from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.behavior import (
    Change,
    Wished,
    down_limit,
    remember,
    stabilise,
    up_limit,
)


@dataclass
class Autoscaler:
    """A HorizontalPodAutoscaler of which only the behavior is there."""

    up: ScalingRules
    down: ScalingRules
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    up_events: list[tuple[float, int]] = field(default_factory=list)
    down_events: list[tuple[float, int]] = field(default_factory=list)

    def normalise(self, current: int, desired: int, now: float) -> int:
        stable = self._stabilise(current, desired, now)
        allowed = self._rate_limited(current, stable, now)
        if allowed > current:
            self.up_events.append((now, allowed - current))
        elif allowed < current:
            self.down_events.append((now, current - allowed))
        return allowed

    def _stabilise(self, current: int, desired: int, now: float) -> int:
        up = down = desired
        for at, recommended in self.recommendations:
            if at > now - self.up.stabilization_window_seconds:
                up = min(recommended, up)
            if at > now - self.down.stabilization_window_seconds:
                down = max(recommended, down)
        recommendation = current
        recommendation = max(recommendation, up)
        recommendation = min(recommendation, down)
        self.recommendations.append((now, desired))
        return recommendation

    def _rate_limited(self, current: int, desired: int, now: float) -> int:
        if desired > current:
            return min(desired, max(current, self._limit(current, self.up, now, is_up=True)))
        if desired < current:
            return max(desired, min(current, self._limit(current, self.down, now, is_up=False)))
        return desired

    def _limit(self, current: int, chosen: ScalingRules, now: float, *, is_up: bool) -> int:
        if chosen.select_policy == "Disabled":
            return current
        wants_most = chosen.select_policy == "Max"
        pick = max if wants_most is is_up else min
        result = -inf if pick is max else inf
        for policy in chosen.policies:
            start = (
                current
                - _change(self.up_events, policy.period_seconds, now)
                + _change(self.down_events, policy.period_seconds, now)
            )
            result = pick(result, _proposed(start, policy, is_up=is_up))
        return int(result)


def _change(events: list[tuple[float, int]], seconds: int, now: float) -> int:
    return sum(count for at, count in events if at > now - seconds)


def _proposed(start: int, policy: ScalingPolicy, *, is_up: bool) -> int:
    if policy.type == "Pods":
        return start + policy.value if is_up else start - policy.value
    share = Fraction(policy.value, 100)
    return ceil(start * (1 + share)) if is_up else trunc(start * (1 - share))


ticks = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 40)), min_size=1, max_size=60)


@settings(max_examples=200)
@given(rules, rules, ticks, st.integers(1, 20))
def test_each_tick_ends_where_a_horizontal_pod_autoscaler_would(
    up: ScalingRules, down: ScalingRules, wished: list[tuple[int, int]], replicas: int
) -> None:
    theirs = Autoscaler(up, down)
    keep = max(1, up.stabilization_window_seconds, down.stabilization_window_seconds)
    wishes: tuple[Wished, ...] = ()
    changes: list[Change] = []
    now = 0.0
    for seconds, wish in wished:
        now += seconds
        expected = theirs.normalise(replicas, wish, now)
        steady = stabilise(replicas, wish, wishes, up, down, now)
        lowest = down_limit(replicas, changes, down, now)
        highest = up_limit(replicas, changes, up, now)
        ours = max(lowest, min(highest, steady))
        assert ours == expected
        wishes = remember(wishes, wish, now, keep)
        if ours != replicas:
            changes.append(Change(now, ours - replicas))
        replicas = ours


@given(ticks)
def test_what_is_kept_of_the_wishes_is_few_and_all_that_counts(
    wished: list[tuple[int, int]],
) -> None:
    kept: tuple[Wished, ...] = ()
    every: list[Wished] = []
    now = 0.0
    for seconds, wish in wished:
        now += seconds
        kept = remember(kept, wish, now, 300.0)
        every.append(Wished(now, wish))
    for window in (1, 30, 100, 299):
        recent = [each.replicas for each in every if each.at > now - window]
        still = [each.replicas for each in kept if each.at > now - window]
        assert (max(recent, default=0), min(recent, default=0)) == (
            max(still, default=0),
            min(still, default=0),
        )
    assert len(kept) <= 2 * 41
