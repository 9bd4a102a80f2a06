"""Requests in flight stand for the demand while the metrics are missing, and only ask for more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_scenes import POLICY, UNREACHABLE, fleet, local

from fastgen_balancer.decision import Memory, Recommendation, Rule, start
from fastgen_balancer.in_flight import SMOOTH_SECONDS, InFlight, load_of, note
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import MetricSignals, Signals, Unknown


def learned(load: float, requests: int, ready: int = 4) -> InFlight:
    known = note(None, requests, ready, load, 0.0)
    assert known is not None
    for now in range(1, 200):
        known = note(known, requests, ready, load, float(now))
    assert known is not None
    return known


@given(st.floats(0.05, 0.99), st.integers(1, 1000))
def test_the_same_requests_mean_the_load_that_they_were_seen_at(load: float, requests: int) -> None:
    found = load_of(learned(load, requests))
    assert found == pytest.approx(load)


@given(st.floats(0.05, 0.99), st.integers(1, 500), st.integers(1, 500))
def test_more_requests_mean_more_and_each_of_them_less(load: float, few: int, more: int) -> None:
    known = learned(load, few)
    then = load_of(replace(known, each=known.each * (1 + more / few)))
    assert then is not None
    assert load < then < load * (1 + more / few) + 1e-9


def test_nothing_is_said_before_anything_was_learned() -> None:
    assert load_of(None) is None
    assert load_of(note(None, 40, 4, None, 0.0)) is None
    assert note(None, 40, 0, 0.5, 0.0) is None, "no replica, no requests per replica"


def test_an_overload_teaches_nothing() -> None:
    known = learned(0.8, 40)
    over = note(known, 400, 4, 1.0, 300.0)
    assert over is not None
    assert over.swelling == known.swelling


def decided(
    seen: MetricSignals | Unknown, requests: int, memory: Memory, begin: float, seconds: float
) -> tuple[Recommendation, Memory]:
    for now in range(int(begin), int(begin + seconds), 2):
        signals = Signals(4, local(4, in_flight=requests), seen)
        decision, memory = recommend(signals, POLICY, memory, float(now))
    return decision, memory


def test_the_demand_is_followed_while_prometheus_is_away() -> None:
    _, memory = decided(fleet(4, 2.8), 80, start(4, 0.0), 0.0, 300.0)
    same, after = decided(UNREACHABLE, 80, memory, 300.0, 120.0)
    assert (same.replicas, same.rule) == (4, Rule.NO_SIGNAL)
    # From 0.7 each on half as many again are 0.88 each; four replicas are planned for 0.85.
    more, _ = decided(UNREACHABLE, 120, after, 420.0, 4 * SMOOTH_SECONDS)
    assert (more.replicas, more.rule) == (5, Rule.DEMAND_ABOVE_CAPACITY)
    assert "120 requests in flight" in more.message
    fewer, _ = decided(UNREACHABLE, 2, after, 420.0, 900.0)
    assert (fewer.replicas, fewer.rule) == (4, Rule.NO_SIGNAL)


def test_with_metrics_requests_in_flight_are_not_asked() -> None:
    _, memory = decided(fleet(4, 2.8), 80, start(4, 0.0), 0.0, 300.0)
    decision, _ = decided(fleet(4, 2.8), 400, memory, 300.0, 60.0)
    assert (decision.replicas, decision.rule) == (4, Rule.STEADY)


def test_a_jump_of_the_clock_changes_nothing() -> None:
    _, memory = decided(fleet(4, 2.8), 80, start(4, 0.0), 0.0, 300.0)
    for jump in (-5000.0, 1e6):
        decision, _ = decided(UNREACHABLE, 80, memory, 300.0 + jump, 60.0)
        assert decision.replicas == 4
