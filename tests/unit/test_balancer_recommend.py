"""The rules of scaling, one by one and over time."""

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

from fastgen_api.names import Outcome
from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.decision import Blocker, Rule, start
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import MetricSignals, Outcomes, Signals, Unknown


def test_steady_load_changes_nothing() -> None:
    decision = decide(Signals(2, local(2, in_flight=8), fleet(2, 1.6)), memory=knowing())
    assert (decision.replicas, decision.rule, decision.blockers) == (2, Rule.STEADY, ())


@pytest.mark.parametrize(
    ("work", "replicas"), [(1.7, 2), (1.71, 3), (2.55, 3), (2.56, 4), (5.0, 6)]
)
@pytest.mark.parametrize("memory", [None, "known"])
def test_demand_above_capacity_asks_for_what_it_needs(
    work: float, replicas: int, memory: str | None
) -> None:
    # With a headroom of 85 %, and before anything was learned as after.
    signals = Signals(2, local(2, in_flight=8), fleet(2, 1.7))
    assert isinstance(signals.metrics, MetricSignals)
    waiting = replace(signals.metrics, arriving=work)
    decision = decide(replace(signals, metrics=waiting), memory=knowing() if memory else None)
    assert decision.replicas == replicas
    assert decision.rule is (Rule.DEMAND_ABOVE_CAPACITY if replicas > 2 else Rule.STEADY)
    if replicas > 2:
        assert f"{work:.2f} engine-seconds/s" in decision.message


def test_waiting_requests_are_demand() -> None:
    # 0.24 per request: 100 waiting ones are 24 engine-seconds, to be cleared in 300 s.
    full = metrics([reading("r0", 0.8, waiting=100.0, running=60.0)], good=100.0)
    decision = decide(Signals(1, local(1, in_flight=160), full), memory=knowing(1.0, None))
    assert (decision.replicas, decision.rule) == (2, Rule.DEMAND_ABOVE_CAPACITY)
    assert decision.message.startswith("0.88 engine-seconds/s")


def test_refused_requests_are_demand() -> None:
    busy = fleet(1, 0.75, running=60.0, good=90.0)
    counts = Outcomes({Outcome.GOOD: 90.0, Outcome.REFUSED: 30.0}, 30.0)
    signals = Signals(1, local(1, in_flight=60), replace(busy, short=counts))
    decision = decide(signals, policy=replace(POLICY, target_ratio=None), memory=knowing())
    assert (decision.replicas, decision.rule) == (2, Rule.DEMAND_ABOVE_CAPACITY)
    assert decision.message.startswith("1.00 engine-seconds/s")


def test_a_shrinking_backlog_needs_no_replica() -> None:
    full = metrics([reading("r0", 1.0, waiting=100.0, waiting_growth=-1.0, running=60.0)], bad=50.0)
    full = replace(full, arriving=0.7)
    decision = decide(Signals(1, local(1, in_flight=160), full), memory=knowing())
    assert (decision.replicas, decision.blockers) == (1, (Blocker.BACKLOG_SHRINKS,))
    slower = replace(full, replicas=(replace(full.replicas[0], waiting_growth=-0.1),))
    assert decide(Signals(1, local(1, in_flight=160), slower), memory=knowing()).replicas == 2


def test_missed_slo_with_saturated_replicas_raises() -> None:
    full = metrics([reading("r0", waiting=4.0)], good=80.0, bad=20.0)
    decision = decide(Signals(1, local(1, in_flight=8), full))
    assert (decision.replicas, decision.rule) == (2, Rule.SLO_MISSED_SATURATED)
    assert "80.0% of 100 requests" in decision.message


def test_missed_slo_without_saturation_is_infeasible() -> None:
    slow = fleet(2, 1.0, running=4.0, good=50.0, bad=50.0)
    decision = decide(Signals(2, local(2, in_flight=8), slow))
    assert (decision.replicas, decision.rule) == (2, Rule.SLO_INFEASIBLE)
    assert "50.0% of 100 requests" in decision.message


def test_infeasible_slo_keeps_no_replica_for_lone_requests() -> None:
    slow = fleet(4, 0.4, running=0.25, good=10.0, bad=50.0)
    decision = decide(Signals(4, local(4, in_flight=1), slow))
    assert (decision.replicas, decision.rule) == (1, Rule.SLO_INFEASIBLE)


def test_slo_missed_at_a_load_never_carried_raises() -> None:
    crowded = fleet(1, 0.75, running=30.0, good=80.0, bad=20.0)
    decision = decide(Signals(1, local(1, in_flight=30), crowded), memory=knowing(0.5, None))
    assert (decision.replicas, decision.rule) == (2, Rule.SLO_MISSED_AT_NEW_LOAD)
    assert "at 0.75 engine-seconds/s per replica, it was held at 0.50" in decision.message


@pytest.mark.parametrize("known", [UNREACHABLE, fleet(1, 0.5)])
def test_queue_raises_with_or_without_prometheus(known: MetricSignals | Unknown) -> None:
    decision = decide(Signals(1, local(1, queued=8, in_flight=4, saturated=1), known))
    assert (decision.replicas, decision.rule) == (2, Rule.QUEUE_AT_BALANCER)
    assert "8 requests queue" in decision.message


def test_small_queue_must_stand() -> None:
    signals = Signals(1, local(1, queued=1, in_flight=4, saturated=1), UNREACHABLE)
    first, memory = recommend(signals, POLICY, start(1, 0.0), 0.0)
    second, memory = recommend(signals, POLICY, memory, 2.0)
    third, _ = recommend(signals, POLICY, memory, 4.0)
    assert [first.replicas, second.replicas, third.replicas] == [1, 1, 2]


def test_saturated_endpoints_raise_after_a_while() -> None:
    signals = Signals(2, local(2, in_flight=20, saturated=2), UNREACHABLE)
    decision, memory = recommend(signals, POLICY, start(2, 0.0), 0.0)
    assert (decision.replicas, decision.rule) == (2, Rule.NO_SIGNAL)
    decision, memory = recommend(signals, POLICY, memory, 10.0)
    assert (decision.replicas, decision.rule) == (3, Rule.ENDPOINTS_SATURATED)


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (UNREACHABLE, "did not answer"),
        (replace(IDLE, replicas=()), "no series of any replica"),
        (replace(IDLE, replicas=IDLE.replicas[:3]), "3 of 4"),
        (
            replace(IDLE, replicas=tuple(replace(r, age_seconds=31.0) for r in IDLE.replicas)),
            "older than 30 s",
        ),
        (replace(IDLE, arriving=None), "engine-seconds"),
        (replace(IDLE, done=None), "engine-seconds"),
        (replace(IDLE, not_numbers=("done", "owed")), "no number for done, owed"),
        (replace(IDLE, queued_requests=None), "queue lengths"),
        (
            replace(IDLE, replicas=tuple(replace(r, running=None) for r in IDLE.replicas)),
            "running requests",
        ),
        (replace(fleet(4, 0.1), short=None), "outcomes"),
        (replace(fleet(4, 0.1), long=None), "outcomes"),
    ],
)
def test_what_is_missing_is_not_zero(known: MetricSignals | Unknown, word: str) -> None:
    decision = decide(Signals(4, local(4), known))
    assert (decision.replicas, decision.rule) == (4, Rule.NO_SIGNAL)
    assert word in decision.message


def test_no_traffic_needs_the_minimum() -> None:
    decision = decide(Signals(4, local(4), IDLE), policy=replace(POLICY, min_replicas=2))
    assert (decision.replicas, decision.rule) == (2, Rule.DEMAND_FITS_FEWER)
    assert decision.message == "no traffic"


def test_no_traffic_is_known_before_the_first_request_is_counted() -> None:
    decision = decide(Signals(4, local(4), replace(IDLE, short=None, long=None)))
    assert (decision.replicas, decision.rule) == (1, Rule.DEMAND_FITS_FEWER)


def test_few_samples_hold_unless_requests_are_alone() -> None:
    some = fleet(3, 0.3, running=2.0, good=1.0)
    decision = decide(Signals(3, local(3, in_flight=6), some), memory=knowing())
    assert (decision.replicas, decision.rule) == (3, Rule.FEW_SAMPLES)
    lone = fleet(3, 0.3, running=0.3, good=1.0)
    decision = decide(Signals(3, local(3, in_flight=1), lone), memory=knowing())
    assert (decision.replicas, decision.rule) == (1, Rule.DEMAND_FITS_FEWER)


def test_down_to_what_was_carried_while_good() -> None:
    # 1.0 carried, 85 % headroom, 80 % margin: 0.68 per replica.
    decision = decide(Signals(4, local(4, in_flight=8), fleet(4, 1.3)), memory=knowing())
    assert (decision.replicas, decision.rule) == (2, Rule.DEMAND_FITS_FEWER)


def test_down_into_the_unknown_goes_one_step() -> None:
    loose = fleet(4, 0.4)
    decision = decide(Signals(4, local(4, in_flight=8), loose), memory=knowing(0.1, None))
    assert (decision.replicas, decision.rule) == (3, Rule.DEMAND_FITS_FEWER)
    warned = decide(Signals(4, local(4, in_flight=8), loose), memory=knowing(0.1, 0.15))
    assert (warned.replicas, warned.rule) == (4, Rule.STEADY)
    full = decide(
        Signals(4, local(4, in_flight=160), fleet(4, 0.4, running=40.0)),
        memory=knowing(0.1, None),
    )
    assert (full.replicas, full.rule) == (4, Rule.STEADY)


def test_bounds_hold_at_once() -> None:
    below = decide(Signals(1, local(1), UNREACHABLE), policy=replace(POLICY, min_replicas=3))
    assert (below.replicas, below.rule) == (3, Rule.BELOW_MINIMUM)
    above = decide(Signals(9, local(9), UNREACHABLE))
    assert (above.replicas, above.rule) == (8, Rule.ABOVE_MAXIMUM)
    none = decide(Signals(0, local(0), UNREACHABLE))
    assert (none.replicas, none.rule) == (1, Rule.BELOW_MINIMUM)


def test_maximum_blocks_and_says_so() -> None:
    signals = Signals(8, local(8, queued=80, in_flight=40, saturated=8), UNREACHABLE)
    decision = decide(signals)
    assert (decision.replicas, decision.rule) == (8, Rule.QUEUE_AT_BALANCER)
    assert decision.blockers == (Blocker.MAX_REPLICAS,)
    assert "maxReplicas is 8" in decision.message


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
