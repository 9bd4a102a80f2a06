"""What recommend does about replicas on their way, windows and what `behavior` allows."""

from dataclasses import replace

import pytest
from scaling_scenes import (
    IDLE,
    POLICY,
    UNREACHABLE,
    decide,
    fleet,
    knowing,
    local,
    metrics,
    reading,
)

from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.decision import Blocker, start
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import Signals


def test_pending_replicas_are_supply_until_they_are_late() -> None:
    policy = replace(POLICY, pending_seconds=300.0)
    hungry = local(1, queued=50, in_flight=4, saturated=1)
    memory, replicas, seen = start(1, 0.0), 1, []
    for now in range(0, 900, 5):
        decision, memory = recommend(
            Signals(replicas, hungry, UNREACHABLE), policy, memory, float(now)
        )
        replicas = decision.replicas
        seen.append((replicas, decision.blockers))
    assert {n for n, _ in seen} == {2}
    assert seen[2] == (2, (Blocker.PENDING_REPLICAS,))
    assert seen[-1] == (2, (Blocker.STUCK_REPLICAS,))


def test_what_the_policies_cut_off_a_wish_comes_when_they_let_it() -> None:
    """Of two replicas the policies make six at once; the rest of the wish is still due then."""
    full = [reading(f"r{i}", 1.0, waiting=50.0, waiting_growth=2.0, running=60.0) for i in (0, 1)]
    known = replace(metrics(full), arriving=6.0)
    policy = replace(POLICY, max_replicas=16)
    at_once = ScalingRules(policies=(ScalingPolicy("Pods", 100, 15),))
    memory, replicas, counts = replace(knowing(), replicas=2), 2, []
    first = Signals(2, local(2, in_flight=120), known)
    wanted = decide(first, replace(policy, scale_up=at_once), knowing()).replicas
    for now in range(10_000, 10_040, 2):
        signals = replace(first, replicas=replicas)
        decision, memory = recommend(signals, policy, memory, float(now))
        replicas = decision.replicas
        counts.append(replicas)
    assert counts[0] == 6
    # What arrives alone needs eight.
    assert 8 < wanted == counts[-1]
    assert sorted(counts) == counts


@pytest.mark.parametrize(("arriving", "replicas"), [(3.3, 4), (3.5, 5), (6.0, 8)])
def test_pending_replicas_hold_back_what_they_will_carry_and_no_more(
    arriving: float, replicas: int
) -> None:
    """Four are there for 3.4 of work; two of them are still to come, and a backlog grows."""
    full = [reading(f"r{i}", 1.0, waiting=50.0, waiting_growth=2.0, running=60.0) for i in (0, 1)]
    known = replace(metrics(full), arriving=arriving)
    memory = replace(knowing(), pending_since=9_990.0)
    decision = decide(Signals(4, local(2, in_flight=120), known), memory=memory)
    assert decision.replicas == replicas
    assert (decision.blockers == (Blocker.PENDING_REPLICAS,)) == (replicas == 4)


def test_late_replicas_do_not_hold_back_the_others() -> None:
    hungry = local(4, queued=50, in_flight=40, saturated=4)
    memory = replace(start(5, 0.0), pending_since=0.0)
    decision, _ = recommend(Signals(5, hungry, UNREACHABLE), POLICY, memory, 601.0)
    assert decision.replicas == 8


def test_new_replicas_get_a_window_before_more_are_asked_for() -> None:
    hungry = Signals(2, local(2, queued=50, in_flight=4, saturated=2), UNREACHABLE)
    memory = replace(start(2, 0.0), pending_since=0.0)
    decision, memory = recommend(hungry, POLICY, memory, 60.0)
    assert decision.blockers == (Blocker.PENDING_REPLICAS,)
    assert "just become ready" in decision.message
    decision, memory = recommend(hungry, POLICY, memory, 90.0)
    assert decision.replicas == 4


def test_a_crash_loop_counts_as_late() -> None:
    memory = start(2, 0.0)
    for now in range(0, 700, 10):
        ready = 2 if now % 60 < 20 else 1
        signals = Signals(2, local(ready), UNREACHABLE)
        _, memory = recommend(signals, POLICY, memory, float(now))
    assert memory.pending_since == 20.0


def test_down_waits_for_the_whole_window() -> None:
    memory, replicas, when = start(4, 0.0), 4, None
    for now in range(0, 400, 5):
        known = fleet(4, 0.0, running=0.0, good=0.0)
        if now == 50:
            known = fleet(4, 3.3, running=30.0)
        decision, memory = recommend(Signals(4, local(4), known), POLICY, memory, float(now))
        if decision.replicas < 4:
            replicas, when = decision.replicas, now
            break
        assert now == 50 or decision.blockers == (Blocker.STABILIZATION_WINDOW,)
    assert (replicas, when) == (1, 350)


@pytest.mark.parametrize(("gap", "when"), [(10, 300), (100, 555)])
def test_lost_metrics_hold_the_window_open(gap: int, when: int) -> None:
    memory, fell = start(4, 0.0), None
    for now in range(0, 800, 5):
        lost = 100 <= now - 60 < 100 + gap
        known = UNREACHABLE if lost else IDLE
        decision, memory = recommend(Signals(4, local(4), known), POLICY, memory, float(now))
        if decision.replicas < 4:
            fell = now
            break
    assert fell == when


def test_scaling_policies_are_kept() -> None:
    slow_up = ScalingRules(policies=(ScalingPolicy(type="Pods", value=1, period_seconds=60),))
    policy = replace(POLICY, scale_up=slow_up)
    hungry = Signals(4, local(4, queued=50, in_flight=4, saturated=4), UNREACHABLE)
    decision = decide(hungry, policy=policy)
    assert decision.replicas == 5
    assert decision.blockers == (Blocker.SCALING_POLICY,)
    no_up = ScalingRules(policies=slow_up.policies, select_policy="Disabled")
    never = decide(hungry, policy=replace(policy, scale_up=no_up))
    assert (never.replicas, never.blockers) == (4, (Blocker.SCALING_POLICY,))


def test_a_new_leader_takes_an_allowance_as_used_up() -> None:
    slow_up = ScalingRules(policies=(ScalingPolicy(type="Pods", value=1, period_seconds=60),))
    policy = replace(POLICY, scale_up=slow_up)
    hungry = Signals(4, local(4, queued=50, in_flight=4, saturated=4), UNREACHABLE)
    memory = start(4, 100.0, last_change_at=70.0)
    decision, memory = recommend(hungry, policy, memory, 100.0)
    assert (decision.replicas, decision.blockers) == (4, (Blocker.SCALING_POLICY,))
    decision, memory = recommend(hungry, policy, memory, 131.0)
    assert decision.replicas == 5


def test_another_model_has_another_capacity() -> None:
    memory = knowing(0.7, 0.7)
    signals = Signals(2, local(2, in_flight=40), fleet(2, 1.3, running=20.0))
    assert decide(signals, memory=memory).replicas == 3
    assert (
        decide(signals, policy=replace(POLICY, capacity_key="other"), memory=memory).replicas == 2
    )
