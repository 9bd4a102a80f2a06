"""To no replica and back."""

from dataclasses import replace

import pytest
from scaling_scenes import IDLE, POLICY, UNREACHABLE, fleet, local, outcomes

from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.decision import Memory, Recommendation, Rule, start
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import LocalSignals, MetricSignals, Signals, Unknown

SLEEPY = replace(POLICY, min_replicas=0, idle_seconds=900.0)
ONE = replace(IDLE, replicas=IDLE.replicas[:1])
NONE = replace(IDLE, replicas=())
HELD = LocalSignals(
    queued_requests=1, in_flight_requests=0, ready_endpoints=0, saturated_endpoints=0
)
SLOW_UP = ScalingRules(
    stabilization_window_seconds=600,
    policies=(ScalingPolicy(type="Percent", value=10, period_seconds=1800),),
)


def rest(
    seconds: int,
    known: MetricSignals | Unknown = ONE,
    policy: Policy = SLEEPY,
    memory: Memory | None = None,
    begin: int = 0,
    seen: LocalSignals | None = None,
) -> tuple[Recommendation, Memory]:
    memory = memory or start(1, 0.0)
    for now in range(begin, begin + seconds + 1, 5):
        signals = Signals(1, seen or local(1), known)
        decision, memory = recommend(signals, policy, memory, float(now))
        if decision.replicas != 1:
            break
    return decision, replace(memory, at=float(now))


@pytest.mark.parametrize("known", [UNREACHABLE, NONE, replace(NONE, queued_requests=None)])
@pytest.mark.parametrize("policy", [SLEEPY, replace(SLEEPY, scale_up=SLOW_UP)])
def test_a_held_request_wakes_at_once_prometheus_or_not(
    known: MetricSignals | Unknown, policy: Policy
) -> None:
    decision, _ = recommend(Signals(0, HELD, known), policy, start(0, 0.0), 1.0)
    assert (decision.replicas, decision.rule, decision.blockers) == (1, Rule.FROM_ZERO, ())


def test_what_other_balancers_hold_wakes_too() -> None:
    elsewhere = replace(NONE, queued_requests=3.0)
    decision, _ = recommend(Signals(0, local(0), elsewhere), SLEEPY, start(0, 0.0), 1.0)
    assert (decision.replicas, decision.rule) == (1, Rule.FROM_ZERO)
    assert decision.message.startswith("3 requests are held")


@pytest.mark.parametrize(("known", "rule"), [(NONE, Rule.STEADY), (UNREACHABLE, Rule.NO_SIGNAL)])
def test_nobody_waits_and_nobody_comes(known: MetricSignals | Unknown, rule: Rule) -> None:
    memory = start(0, 0.0)
    for now in range(0, 3600, 5):
        decision, memory = recommend(Signals(0, local(0), known), SLEEPY, memory, float(now))
        assert (decision.replicas, decision.rule) == (0, rule)


def test_without_leave_to_sleep_one_stays() -> None:
    decision, _ = rest(7200, policy=replace(SLEEPY, min_replicas=1))
    assert decision.replicas == 1


def test_the_last_replica_goes_when_it_has_been_idle_as_long_as_asked() -> None:
    decision, memory = rest(7200)
    assert (decision.replicas, decision.rule, decision.blockers) == (0, Rule.TO_ZERO, ())
    assert memory.at == 900.0
    assert "for 900 s" in decision.message


BUSY = [
    (replace(ONE, arriving=0.01, arriving_requests=0.1), None),
    (replace(ONE, done=0.01), None),
    (replace(ONE, queued_requests=1.0), None),
    (replace(ONE, replicas=(replace(ONE.replicas[0], running=1.0),)), None),
    (replace(ONE, replicas=(replace(ONE.replicas[0], waiting=1.0),)), None),
    (replace(ONE, short=outcomes(0.0, refused=1.0)), None),
    (ONE, local(1, in_flight=1)),
    (ONE, local(1, queued=1)),
    (ONE, replace(local(1), unheard_balancers=1)),
]


@pytest.mark.parametrize(("known", "seen"), BUSY)
def test_whatever_somebody_asks_for_is_no_rest(
    known: MetricSignals, seen: LocalSignals | None
) -> None:
    _, memory = rest(800)
    decision, memory = rest(0, known, memory=memory, begin=805, seen=seen)
    assert decision.replicas >= 1
    decision, memory = rest(7200, memory=memory, begin=810)
    assert (decision.rule, memory.at) == (Rule.TO_ZERO, 810.0 + 900.0)


@pytest.mark.parametrize(
    "known",
    [
        UNREACHABLE,
        replace(ONE, replicas=(replace(ONE.replicas[0], age_seconds=31.0),)),
        replace(ONE, done=None),
        replace(ONE, not_numbers=("done",)),
    ],
)
def test_what_is_not_known_is_no_rest(known: MetricSignals | Unknown) -> None:
    _, memory = rest(800)
    _, memory = rest(0, known, memory=memory, begin=805)
    decision, memory = rest(7200, memory=memory, begin=810)
    assert (decision.rule, memory.at) == (Rule.TO_ZERO, 810.0 + 900.0)
    for now in range(0, 7200, 5):
        decision, memory = recommend(Signals(1, local(1), known), SLEEPY, memory, float(now))
        assert decision.replicas == 1


def test_a_replica_that_still_starts_is_not_idle() -> None:
    """It was woken, and loads its model for longer than the idle time."""
    decision, memory = rest(3000, seen=local(0))
    assert decision.replicas == 1
    decision, memory = rest(7200, memory=memory, begin=3005)
    assert (decision.rule, memory.at) == (Rule.TO_ZERO, 3905.0)


def test_nobody_looked_for_a_while() -> None:
    _, memory = rest(800)
    decision, _ = rest(0, memory=memory, begin=5000)
    assert decision.replicas == 1


def test_several_replicas_go_through_the_window_first() -> None:
    memory, replicas, seen = start(3, 0.0), 3, []
    for now in range(0, 2000, 5):
        signals = Signals(replicas, local(replicas), replace(IDLE, replicas=IDLE.replicas[:3]))
        decision, memory = recommend(signals, SLEEPY, memory, float(now))
        if decision.replicas != replicas:
            replicas = decision.replicas
            seen.append((now, replicas))
    assert seen == [(300, 1), (900, 0)]


def test_who_forbids_to_scale_down_keeps_the_last_one() -> None:
    never = ScalingRules(select_policy="Disabled")
    decision, _ = rest(3000, policy=replace(SLEEPY, scale_down=never))
    assert decision.replicas == 1


def test_a_burst_after_sleep_goes_on_growing() -> None:
    hungry = LocalSignals(
        queued_requests=50, in_flight_requests=4, ready_endpoints=1, saturated_endpoints=1
    )
    decision, memory = recommend(Signals(0, HELD, NONE), SLEEPY, start(0, 0.0), 1.0)
    assert decision.replicas == 1
    for now in range(3, 63, 2):
        signals = Signals(1, local(0, queued=50), NONE)
        decision, memory = recommend(signals, SLEEPY, memory, float(now))
        assert decision.replicas == 1, "the first one is still to come"
    for now in range(63, 100, 2):
        full = fleet(1, 1.0, running=60.0)
        decision, memory = recommend(Signals(1, hungry, full), SLEEPY, memory, float(now))
    assert decision.replicas == 2
