"""`spec.scaling.behavior` means what it means to a HorizontalPodAutoscaler."""

import pytest

from fastgen_api.spec import ScaleDownRules, ScalingPolicy, ScalingRules
from fastgen_balancer.behavior import Change, Wished, down_limit, remember, stabilise, up_limit

NOW = 1000.0
UP_POLICIES = ScalingRules().policies
DOWN_POLICIES = ScaleDownRules().policies


def pods(value: int, seconds: int = 60) -> ScalingPolicy:
    return ScalingPolicy(type="Pods", value=value, period_seconds=seconds)


def percent(value: int, seconds: int = 60) -> ScalingPolicy:
    return ScalingPolicy(type="Percent", value=value, period_seconds=seconds)


@pytest.mark.parametrize(
    ("wished", "history", "up", "down", "becomes"),
    [
        (8, [], 0, 300, 8),
        (2, [], 0, 300, 2),
        (2, [(999, 4)], 0, 300, 4),
        (2, [(999, 9)], 0, 300, 5),
        (2, [(701, 4)], 0, 300, 4),
        (2, [(700, 4)], 0, 300, 2),
        (8, [(950, 6)], 60, 300, 6),
        (8, [(950, 3)], 60, 300, 5),
        (8, [(930, 3)], 60, 300, 8),
        (5, [(999, 2)], 60, 300, 5),
        (2, [(999, 4)], 0, 0, 2),
    ],
)
def test_windows(
    wished: int, history: list[tuple[float, int]], up: int, down: int, becomes: int
) -> None:
    wishes = [Wished(at, replicas) for at, replicas in history]
    rise = ScalingRules(stabilization_window_seconds=up)
    fall = ScalingRules(stabilization_window_seconds=down)
    assert stabilise(5, wished, wishes, rise, fall, NOW) == becomes


@pytest.mark.parametrize(
    ("current", "changes", "policies", "select", "limit"),
    [
        (1, [], UP_POLICIES, "Max", 5),
        (10, [], UP_POLICIES, "Max", 20),
        (10, [], UP_POLICIES, "Min", 14),
        (10, [], UP_POLICIES, "Disabled", 10),
        (3, [], (percent(10),), "Max", 4),
        (4, [(990, 2)], (pods(3),), "Max", 5),
        (5, [(990, 3)], (pods(3),), "Max", 5),
        (9, [(990, 6)], (pods(3),), "Max", 9),
        (5, [(940, 3)], (pods(3),), "Max", 8),
        (4, [(990, -2)], (pods(3),), "Max", 9),
        (4, [(990, None)], (pods(3),), "Max", 4),
        (4, [(990, None)], (pods(3), pods(1, 5)), "Max", 5),
    ],
)
def test_up_policies(
    current: int,
    changes: list[tuple[float, int | None]],
    policies: tuple[ScalingPolicy, ...],
    select: str,
    limit: int,
) -> None:
    made = [Change(at, delta) for at, delta in changes]
    rules = ScalingRules(policies=policies, select_policy=select)
    assert up_limit(current, made, rules, NOW) == limit


@pytest.mark.parametrize(
    ("current", "changes", "policies", "select", "limit"),
    [
        (10, [], DOWN_POLICIES, "Max", 0),
        (10, [], (percent(50), pods(2)), "Max", 5),
        (10, [], (percent(50), pods(2)), "Min", 8),
        (10, [], (percent(50),), "Disabled", 10),
        (10, [(990, -2)], (pods(3),), "Max", 9),
        (10, [(990, -4)], (pods(3),), "Max", 10),
        (5, [], (percent(10),), "Max", 4),
        (2, [], (pods(4),), "Max", 0),
    ],
)
def test_down_policies(
    current: int,
    changes: list[tuple[float, int | None]],
    policies: tuple[ScalingPolicy, ...],
    select: str,
    limit: int,
) -> None:
    made = [Change(at, delta) for at, delta in changes]
    rules = ScalingRules(policies=policies, select_policy=select)
    assert down_limit(current, made, rules, NOW) == limit


def test_history_stays_short() -> None:
    history: tuple[Wished, ...] = ()
    for second in range(5000):
        history = remember(history, 3 if second % 1000 == 0 else 2, float(second), 300.0)
    assert history == (Wished(4999.0, 2),)
