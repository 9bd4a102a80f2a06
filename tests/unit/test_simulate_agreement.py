"""Simulated against real: what is cut of a trace, and what agrees with what."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_cli.errors import UserError
from fastgen_cli.simulate.agreement import (
    Distance,
    Run,
    Seen,
    cold_starts,
    distance,
    judge,
    run_of,
    wanted_at,
)
from fastgen_cli.simulate.result import Moment
from fastgen_cli.simulate.trace import Arrival, Trace
from fastgen_cli.simulate.window import Cut, busiest_load, cut, lead_seconds, led_in
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.latency import StepCost

COST = StepCost(0.25, 0.008, 1e-6, 0.015)

arrivals = st.builds(
    Arrival,
    at=st.floats(0, 400),
    prompt_tokens=st.integers(1, 8000),
    output_tokens=st.integers(1, 2000),
)
traces = st.lists(arrivals, max_size=60).map(lambda a: tuple(sorted(a, key=lambda one: one.at)))
timelines = st.lists(
    st.tuples(st.floats(0, 100), st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12
).map(lambda rows: tuple(Moment(at, w, r, r) for at, w, r in sorted(rows)))


def how(**changes: float) -> Cut:
    given = {"begin_seconds": 100.0, "seconds": 200.0, "keep": 1.0, "shorten": 16.0}
    return Cut(**(given | {"longest_prompt": 100, "longest_output": 20} | changes))


def test_a_window_is_shortened_then_clipped_and_what_is_left_is_told() -> None:
    trace = (
        Arrival(99.9, 160, 16),
        Arrival(100.0, 170, 33),
        Arrival(150.0, 8000, 5),
        Arrival(300.0, 160, 16),
    )
    window, left = cut(trace, how())
    assert window == (Arrival(0.0, 10, 2), Arrival(50.0, 100, 1))
    assert (left.requests, left.requests_before, left.clipped) == (2, 2, 1)
    assert (left.prompt_tokens, left.prompt_tokens_before) == (110, 8170)
    assert (left.output_tokens, left.output_tokens_before) == (3, 38)


@given(traces, st.floats(0.01, 1.0), st.floats(1, 64))
def test_a_cut_keeps_a_part_in_order_and_within_its_bounds(
    trace: Trace, keep: float, shorten: float
) -> None:
    asked = how(keep=keep, shorten=shorten)
    try:
        window, left = cut(trace, asked)
    except UserError:
        return
    assert len(window) == left.requests <= left.requests_before <= len(trace)
    assert all(0 <= one.at < asked.seconds for one in window)
    assert all(before.at <= after.at for before, after in pairwise(window))
    assert all(1 <= one.prompt_tokens <= asked.longest_prompt for one in window)
    assert all(1 <= one.output_tokens <= asked.longest_output for one in window)
    assert cut(trace, asked) == (window, left)


def test_thinning_keeps_about_the_share_that_is_asked_for() -> None:
    trace = tuple(Arrival(100 + number / 10, 160, 160) for number in range(2000))
    _, left = cut(trace, how(keep=0.25))
    assert 430 < left.requests < 570


def test_a_window_without_requests_says_so() -> None:
    with pytest.raises(UserError, match="100 to 300 s of the trace"):
        cut((Arrival(5.0, 10, 10),), how())


def test_the_lead_goes_before_and_the_window_follows_whole() -> None:
    trace = tuple(Arrival(float(number), number + 1, 3) for number in range(5))
    begin = lead_seconds(2, 3.0, 40.0)
    assert begin == 46.0
    found = led_in(trace, 2, 3.0, 40.0)
    assert found[:2] == (Arrival(0.0, 1, 3), Arrival(3.0, 2, 3))
    assert found[2:] == tuple(
        Arrival(begin + a.at, a.prompt_tokens, a.output_tokens) for a in trace
    )


@given(traces, st.integers(2, 5))
def test_the_busiest_minute_grows_with_the_requests(trace: Trace, times: int) -> None:
    pace = Pace(1.0, None, 4.0, 0.03)
    many = tuple(one for one in trace for _ in range(times))
    assert busiest_load(many, COST, pace) == pytest.approx(times * busiest_load(trace, COST, pace))
    # Sums in another order differ in their last digits.
    assert busiest_load(trace[:-1], COST, pace) <= busiest_load(trace, COST, pace) * (1 + 1e-9)


def test_the_busiest_minute_is_in_engine_seconds_per_second() -> None:
    # 64 tokens and one answer token more than the first: own seconds, then the share of the base.
    trace = tuple(Arrival(60.0 + number, 64, 2) for number in range(30))
    cost = StepCost(0.25, 0.01, 0.0, 0.0)
    own = 30 * (64 + 1) * 0.01 / 60
    longest = 0.9 * 1.0
    found = busiest_load(trace, cost, Pace(1.0, None, 0.0, 0.0))
    assert found == pytest.approx(own * longest / (longest - 0.25), rel=0.02)


def moments(*rows: tuple[float, int, int]) -> tuple[Moment, ...]:
    return tuple(Moment(at, wanted, ready, ready) for at, wanted, ready in rows)


def test_cold_starts_last_from_the_wish_to_the_last_ready_replica() -> None:
    timeline = moments(
        (0, 1, 1), (10, 2, 1), (50, 2, 2), (60, 3, 2), (61, 3, 2), (99, 3, 3), (120, 1, 3)
    )
    assert cold_starts(timeline) == (40.0, 39.0)


def test_a_wish_that_changed_meanwhile_counts_once() -> None:
    assert cold_starts(moments((0, 1, 1), (10, 2, 1), (20, 3, 1), (50, 3, 2), (70, 3, 3))) == (50,)
    assert cold_starts(moments((0, 1, 1), (10, 2, 1), (20, 1, 1), (50, 1, 1))) == ()


@given(timelines, timelines)
def test_distance_is_symmetric_and_none_to_itself(
    one: tuple[Moment, ...], other: tuple[Moment, ...]
) -> None:
    assert distance(one, one, 100.0) == Distance(0, 1.0)
    there, back = distance(one, other, 100.0), distance(other, one, 100.0)
    assert there.most == back.most
    assert there.alike == pytest.approx(back.alike)
    assert -1e-9 <= there.alike <= 1
    apart = [
        abs(wanted_at(one, at) - wanted_at(other, at))
        for at in {0.0, *(m.at for m in (*one, *other) if m.at < 100.0)}
    ]
    assert there.most == max(apart)


def test_distance_is_told_in_replicas_and_time() -> None:
    one = moments((-5, 1, 1), (10, 2, 1), (30, 3, 1))
    other = moments((0, 1, 1), (20, 3, 1))
    assert distance(one, other, 40.0) == Distance(1, 0.5)
    assert distance(one, moments((0, 1, 1)), 40.0) == Distance(2, 0.25)
    # What comes after the time does not count.
    assert distance(one, moments((0, 1, 1)), 10.0) == Distance(0, 1.0)


def run(name: str, p90: float | None, *rows: tuple[float, int, int]) -> Run:
    return Run(name, 10, 0.9, 1.0, p90, 0.2, 0.3, None, moments(*(rows or ((0, 1, 1),))))


@pytest.mark.parametrize(
    ("first", "second", "simulated", "tolerance", "holds"),
    [
        (2.0, 2.0, 2.29, 0.15, True),
        (2.0, 2.0, 2.31, 0.15, False),
        (2.0, 2.0, 1.71, 0.15, True),
        (2.0, 2.0, 1.69, 0.15, False),
        (1.5, 2.5, 2.9, 0.5, True),
        (2.5, 1.5, 3.1, 0.5, False),
    ],
)
def test_latency_agrees_within_the_spread_of_the_replays_or_15_percent(
    first: float, second: float, simulated: float, tolerance: float, holds: bool
) -> None:
    verdict = judge(run("1", first), run("2", second), run("s", simulated), 60.0)
    assert verdict.tolerance == pytest.approx(tolerance)
    assert verdict.latency_holds is holds
    assert verdict.holds is holds


def test_a_timeline_may_be_one_replica_off_either_replay_and_no_more() -> None:
    flat, up = run("1", 2.0, (0, 1, 1)), run("2", 2.0, (0, 1, 1), (20, 2, 1))
    near = judge(flat, up, run("s", 2.0, (0, 1, 1), (25, 2, 1)), 60.0)
    assert near.holds
    assert (near.between.most, near.between.alike) == (1, pytest.approx(20 / 60))
    far = judge(flat, up, run("s", 2.0, (0, 1, 1), (25, 3, 1)), 60.0)
    assert far.latency_holds
    assert not far.timeline_holds
    assert not far.holds


def test_a_run_without_a_first_token_is_not_judged() -> None:
    with pytest.raises(ValueError, match="first token"):
        judge(run("1", 2.0), run("2", None), run("s", 2.0), 60.0)


def test_a_run_is_summed_up() -> None:
    seen = [Seen(float(n), n / 10, 0.2 if n % 2 else None, n < 8) for n in range(1, 11)]
    seen += [Seen(11.0, None, None, False), Seen(12.0, None, None, None)]
    found = run_of("r", seen, moments((0, 1, 1), (5, 2, 1), (9, 2, 2)))
    assert (found.requests, found.good_ratio) == (12, 7 / 11)
    assert (found.ttft_p50, found.ttft_p90) == (0.5, 0.9)
    assert (found.tpot_p50, found.tpot_p90) == (0.2, 0.2)
    assert found.cold_start_seconds == 4.0
