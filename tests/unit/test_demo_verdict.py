"""How the demo chooses its load and judges what the second replica did."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken
from fastgen_cli.load import NOT_SENT, UNSENT, Sample
from fastgen_cli.summary import summarize
from fastgen_devcluster.demo import verdict

GOAL = SLO(
    target_percent="95",
    time_to_first_token=TimeToFirstToken(milliseconds=1000),
    time_per_output_token=TimePerOutputToken(milliseconds=1),
)


def answered(sent: float, ttft: float) -> Sample:
    return Sample(sent, sent + ttft + 1, 200, ttft_seconds=ttft, tpot_seconds=0.1)


@given(st.floats(0, 1e3))
def test_the_burst_is_more_than_one_replica_carries_and_less_than_two(carried: float) -> None:
    rate = verdict.first_rate(carried)
    assert rate > carried
    assert rate < 2 * max(carried, 0.1)


@given(st.floats(0.01, 100), st.integers(0, 40), st.floats(0, 5))
def test_the_rate_is_raised_only_while_enough_requests_hold_the_slo(
    rate: float, count: int, ttft: float
) -> None:
    goal = SLO(target_percent="95", time_to_first_token=TimeToFirstToken(milliseconds=1000))
    window = summarize([answered(0.0, ttft)] * count, 15, goal)
    raised = verdict.next_rate(rate, window, goal) > rate
    assert raised == (count >= verdict.MIN_TELLING and ttft <= 1)


@given(st.integers(1, 8), st.integers(1, 50), st.floats(0.1, 10))
def test_what_a_closed_loop_carries_follows_from_its_latencies(
    streams: int, rounds: int, latency: float
) -> None:
    samples = [
        Sample(turn * latency, (turn + 1) * latency, 200)
        for turn in range(rounds)
        for _ in range(streams)
    ]
    assert verdict.carried(samples, streams) == pytest.approx(streams / latency)
    assert verdict.carried([Sample(0, 1, 503, error="full")], streams) == 0


def queue_simulation(rate: float, ready_at: float, end: float) -> list[Sample]:
    """Requests of one second each at one server, from `ready_at` on at two."""
    rng = random.Random(4)
    free = [0.0]
    at, samples = 0.0, []
    while (at := at + rng.expovariate(rate)) < end:
        if at >= ready_at and len(free) == 1:
            free.append(at)
        server = min(range(len(free)), key=free.__getitem__)
        begins = max(at, free[server])
        free[server] = begins + 1.0
        samples.append(Sample(at, begins + 1, 200, ttft_seconds=begins - at + 0.1))
    return samples


@pytest.mark.parametrize("seed_rate", [1.4, 1.6])
def test_a_second_server_is_seen_to_help(seed_rate: float) -> None:
    samples = queue_simulation(seed_rate, ready_at=40, end=120)
    comparison = verdict.compare(samples, 40, 120, GOAL)
    assert comparison.is_better
    assert comparison.before.good_share is not None
    assert comparison.after.good_share is not None
    assert comparison.after.good_share > comparison.before.good_share


def test_a_second_server_that_never_comes_is_not_seen_to_help() -> None:
    samples = queue_simulation(1.6, ready_at=1000, end=120)
    assert not verdict.compare(samples, 40, 120, GOAL).is_better


def test_arrivals_that_met_the_cap_are_no_measurements() -> None:
    capped = [Sample(float(at), float(at), UNSENT, error=NOT_SENT) for at in range(20, 60)]
    comparison = verdict.compare([*capped, answered(30, 3.0), answered(55, 0.5)], 40, 60, GOAL)
    assert (comparison.before.requests, comparison.after.requests) == (1, 1)


def test_the_burst_goes_on_until_a_window_met_the_ttft_target() -> None:
    late = [answered(float(at), 3.0) for at in range(60)]
    fast = [answered(60.0 + at, 0.5) for at in range(40)]
    assert not verdict.may_end([*late, *fast], ready_at=50, now=65, slo=GOAL)
    assert not verdict.may_end(late, ready_at=20, now=60, slo=GOAL)
    assert verdict.may_end([*late, *fast], ready_at=50, now=90, slo=GOAL)
    assert not verdict.may_end([], ready_at=50, now=90, slo=GOAL)


@given(st.floats(0, 100))
def test_the_backlog_is_bounded_in_seconds(carried: float) -> None:
    cap = verdict.max_in_flight(carried)
    assert cap >= verdict.MIN_CONCURRENT
    assert cap <= max(verdict.MIN_CONCURRENT, verdict.BACKLOG_SECONDS * carried + 1)
