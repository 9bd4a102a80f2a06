"""What is learned of replicas, and what chance and a sick one among them must not teach."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_scenes import POLICY, decide, local, metrics, reading

from fastgen_balancer.capacity import CHANCE, Capacity, Verdict, beyond_chance, judge, learn
from fastgen_balancer.decision import Memory, Rule
from fastgen_balancer.recommend import recommend
from fastgen_balancer.signals import ReplicaReading, Signals

NOW = 10_000.0


def _learned(readings: list[ReplicaReading]) -> Capacity:
    known = judge(metrics(readings), POLICY)
    return learn(Capacity(), tuple(readings), known, POLICY, missed_long=False, now=NOW)


@pytest.mark.parametrize("number", [2, 4, 9])
def test_a_sick_replica_says_nothing_about_the_others(number: int) -> None:
    """It has more than it can do, and they have little: what they do is not the most they can."""
    sick = reading("sick", 0.1, waiting=5)
    well = [reading(f"r{i}", 0.3) for i in range(number - 1)]
    assert _learned([sick, *well]).overload is None


def test_what_the_busiest_does_while_it_has_more_than_it_can_is_the_most() -> None:
    full = [reading("r0", 0.8, waiting=3), reading("r1", 0.9, waiting=3)]
    assert _learned(full).overload_at(NOW) == 0.9
    hot = [reading("r0", 0.9, waiting=3), reading("r1", 0.3), reading("r2", 0.3)]
    assert _learned(hot).overload_at(NOW) == 0.9


@pytest.mark.parametrize(
    ("good", "bad", "clear"),
    [
        (19, 1, False),
        (18, 2, True),
        (97, 3, False),
        (95, 5, True),
        (985, 15, False),
        (980, 20, True),
        (0, 20, True),
    ],
)
def test_a_miss_by_chance_is_no_clear_one(good: float, bad: float, clear: bool) -> None:
    judgement = judge(metrics([reading("r0")], good=good, bad=bad), POLICY)
    assert (judgement.verdict, judgement.is_clear) == (Verdict.MISSED, clear)


@given(
    st.integers(1, 300),
    st.data(),
    st.sampled_from([0.5, 0.9, 0.99, 0.999]),
)
def test_what_is_beyond_chance_is_at_most_as_likely_as_is_said(
    samples: int, data: st.DataObject, target: float
) -> None:
    bad = data.draw(st.integers(0, samples))
    if beyond_chance(samples, 1 - bad / samples, target):
        usual = 1 - target
        fewer = sum(comb(samples, k) * usual**k * target ** (samples - k) for k in range(bad))
        assert 1 - fewer <= CHANCE + 1e-9


def test_where_all_must_be_good_one_bad_request_is_clear() -> None:
    assert beyond_chance(20, 0.95, 1.0)
    assert not beyond_chance(20, 1.0, 1.0)


def test_one_late_request_and_one_that_waits_a_moment_ask_for_nothing_and_teach_nothing() -> None:
    known = metrics([reading(f"r{i}", 0.2, running=3) for i in range(4)], good=19.0, bad=1.0)
    signals = Signals(4, local(4, queued=1, in_flight=10), known)
    decision, memory = recommend(signals, POLICY, Memory(replicas=4), NOW)
    assert decision.replicas == 4
    assert memory.capacity.missed is None


def test_a_sick_replica_is_named_where_more_would_not_help() -> None:
    readings = [reading(f"r{i}", 0.3, running=8) for i in range(3)]
    readings.append(reading("sick", 0.1, waiting=5, running=8))
    known = metrics(readings, good=80.0, bad=20.0)
    decision = decide(Signals(4, local(4, in_flight=32, saturated=1), known))
    assert decision.rule is Rule.SLO_INFEASIBLE
    assert "only sick of 4 replicas has more to do than it can" in decision.message
