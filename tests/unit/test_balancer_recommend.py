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
