"""The simulation: no request is lost, the seed decides, steps may be taken together."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastgen_api.names import Outcome
from fastgen_api.spec import (
    SLO,
    BudgetMode,
    TimePerOutputToken,
    TimeToFirstToken,
    TokenGap,
)
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.monitoring import Outage, OutageKind
from fastgen_cli.simulate.pods import Supply
from fastgen_cli.simulate.profile import LLAMA8B_L4, Profile
from fastgen_cli.simulate.replica import Replica
from fastgen_cli.simulate.result import reversals
from fastgen_cli.simulate.scaler import FixedScaler, Observation
from fastgen_cli.simulate.simulation import Setup, own_scaler, pace_of, simulate
from fastgen_cli.simulate.trace import Arrival, Trace
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.front.goodness import Timings

SLO_ = SLO("99", TimeToFirstToken(1000, 2000), TimePerOutputToken(125), TokenGap(500))
BOUND_SECONDS = 1e-9
"""How far a time of the simulation may move when unchanged steps are taken together."""

arrivals = st.builds(
    Arrival,
    at=st.floats(0, 60),
    prompt_tokens=st.integers(1, 3000),
    output_tokens=st.integers(1, 400),
)
traces = st.lists(arrivals, min_size=1, max_size=40).map(
    lambda found: tuple(sorted(found, key=lambda a: a.at))
)
profiles = st.builds(
    lambda blocks, running, mode: replace(
        LLAMA8B_L4,
        num_blocks=blocks,
        max_length=min(4096, blocks * LLAMA8B_L4.block_size),
        max_concurrent_requests=running,
        budget_mode=mode,
        cold_start_seconds=10.0,
    ),
    st.sampled_from([60, 100, 660]),
    st.sampled_from([2, 8, 64]),
    st.sampled_from(BudgetMode),
)


def setup_of(trace: Trace, profile: Profile = LLAMA8B_L4, **changes: object) -> Setup:
    setup = Setup(trace, 90.0, profile, SLO_, max_replicas=4, initial_replicas=2)
    return replace(setup, **changes)


def steady(rate: float, seconds: float, prompt: int = 600, output: int = 150) -> Trace:
    count = int(rate * seconds)
    return tuple(Arrival(i / rate, prompt, output) for i in range(count))


OVERTAKEN: Trace = (
    Arrival(0.0, 777, 176),
    Arrival(0.0, 644, 105),
    Arrival(5.960464477539063e-08, 643, 110),
    Arrival(1.192092896e-07, 408, 158),
    Arrival(0.01, 2299, 75),
    Arrival(1.9, 1, 1),
    Arrival(2.00001, 2504, 1),
)
"""The request that waits first becomes late while others run, so the next one is let in."""


@settings(max_examples=20)
@given(trace=traces, profile=profiles)
@example(
    trace=OVERTAKEN,
    profile=replace(LLAMA8B_L4, num_blocks=100, max_concurrent_requests=8, cold_start_seconds=10.0),
)
def test_taking_unchanged_steps_together_changes_no_time(trace: Trace, profile: Profile) -> None:
    fast = simulate(setup_of(trace, profile), FixedScaler(2))
    slow = simulate(setup_of(trace, profile, fast_forward=False), FixedScaler(2))
    assert fast.outcomes == slow.outcomes
    assert fast.steps == slow.steps
    assert fast.replica_hours == pytest.approx(slow.replica_hours)
    for one, other in zip(
        sorted(fast.entries, key=lambda e: (e.arrived, e.output_tokens)),
        sorted(slow.entries, key=lambda e: (e.arrived, e.output_tokens)),
        strict=True,
    ):
        assert one.outcome is other.outcome
        assert one.ttft_seconds == pytest.approx(other.ttft_seconds, abs=BOUND_SECONDS)
        assert one.tpot_seconds == pytest.approx(other.tpot_seconds, abs=BOUND_SECONDS)


def test_most_steps_are_not_planned_one_by_one() -> None:
    result = simulate(setup_of(steady(1.0, 60.0)), FixedScaler(2))
    assert result.planned_steps < result.steps / 3


@settings(max_examples=15)
@given(
    trace=traces,
    profile=profiles,
    crashes=st.lists(st.floats(0, 80), max_size=3).map(tuple),
    at_once=st.integers(1, 3),
    outage=st.sampled_from(OutageKind),
    seed=st.integers(0, 5),
)
def test_each_request_ends_once(
    trace: Trace,
    profile: Profile,
    crashes: tuple[float, ...],
    at_once: int,
    outage: OutageKind,
    seed: int,
) -> None:
    setup = setup_of(
        trace,
        profile,
        crashes=crashes,
        supply=Supply(at_once=at_once, late_seconds=20.0, late_slowdown=1.5, most=3),
        initial_replicas=1,
        outages=(Outage(20.0, 50.0, outage),),
        seed=seed,
    )
    result = simulate(setup, own_scaler(setup))
    assert result.requests == sum(result.outcomes.values()) == len(trace)
    assert sorted(e.arrived for e in result.entries) == [a.at for a in trace]
    if not crashes and not result.outcomes[Outcome.REFUSED] and not result.outcomes[Outcome.ERROR]:
        assert result.output_tokens == sum(a.output_tokens for a in trace)
    assert result.most_replicas <= 3


def test_the_same_seed_gives_the_same_result_and_another_one_does_not() -> None:
    trace = steady(3.0, 80.0)
    one, same, other = (simulate(setup_of(trace, seed=seed), FixedScaler(3)) for seed in (1, 1, 2))
    assert one == same
    assert one.entries != other.entries


def test_a_replica_alone_takes_the_time_of_its_steps() -> None:
    """One request of 100 tokens that makes 3: a step of the prompt, two of one token."""
    ended: list[tuple[Call, float]] = []
    replica = Replica("r", LLAMA8B_L4, pace_of(SLO_), lambda call, now: ended.append((call, now)))
    call = Call("1", 5.0, 100, 3, Timings(5.0, prompt_tokens=100))
    replica.take(call, 5.0)
    while replica.ends_at is not None:
        replica.finish_step()
    replica.check()
    cost = LLAMA8B_L4.cost
    prompt = cost.base + cost.per_request + 100 * cost.per_token + 5050 * cost.per_attended
    tokens = 2 * (cost.base + cost.per_request + cost.per_token) + (101 + 102) * cost.per_attended
    assert call.timings.ttft_seconds == pytest.approx(prompt)
    assert [(one.id, now) for one, now in ended] == [("1", pytest.approx(5.0 + prompt + tokens))]
    assert (replica.num_prompt_tokens, replica.num_output_tokens) == (100, 3)


def test_gpus_are_paid_for_from_the_pods_start_to_its_end() -> None:
    """Two replicas of 90 s, a third one from 10 s on that never serves before the end."""
    setup = setup_of((Arrival(0.0, 10, 2),))
    result = simulate(setup, FixedScaler(lambda now: 3 if now >= 10 else 2))
    assert result.replica_hours == pytest.approx((2 * 90 + 80) / 3600)


def test_late_gpus_leave_pods_pending_and_cost_nothing_meanwhile() -> None:
    supply = Supply(at_once=2, late_seconds=30.0)
    setup = setup_of((Arrival(0.0, 10, 2),), supply=supply)
    result = simulate(setup, FixedScaler(3))
    assert result.replica_hours == pytest.approx((2 * 90 + 55) / 3600)
    assert [(m.at, m.gpus) for m in result.timeline if m.gpus == 3] == [(35.0, 3)]


def test_a_crash_breaks_begun_streams_and_retries_the_others() -> None:
    trace = (Arrival(0.0, 100, 200), Arrival(0.01, 8000, 5))
    setup = setup_of(trace, crashes=(0.5,), initial_replicas=2, seed=3)
    result = simulate(setup, FixedScaler(2))
    assert result.requests == 2
    assert result.outcomes[Outcome.ERROR] == 1


def test_without_a_ready_replica_requests_are_refused() -> None:
    setup = setup_of((Arrival(1.0, 10, 2),), supply=Supply(at_once=0, most=0))
    assert simulate(setup, FixedScaler(1)).outcomes[Outcome.REFUSED] == 1


def test_own_scaler_holds_while_metrics_are_missing() -> None:
    trace = steady(2.0, 400.0, 300, 20)
    for kind in OutageKind:
        setup = setup_of(trace, seconds=400.0, outages=(Outage(150.0, 350.0, kind),))
        result = simulate(setup, own_scaler(setup))
        during = {m.wanted for m in result.timeline if 150 <= m.at < 350}
        before = [m.wanted for m in result.timeline if m.at < 150][-1]
        assert min(during, default=before) >= before


@pytest.mark.parametrize(
    ("wanted", "count"),
    [([1, 2, 3], 0), ([1, 2, 1], 1), ([2, 1, 1, 2, 3, 2], 2), ([1, 1], 0), ([3, 2, 1, 2], 1)],
)
def test_reversals_count_turns_of_direction(wanted: list[int], count: int) -> None:
    assert reversals(wanted) == count


def test_a_simulation_ends_once_its_goal_is_out_of_reach() -> None:
    setup = setup_of(steady(10.0, 30.0, 600, 60), max_replicas=1, initial_replicas=1)
    whole = simulate(setup, FixedScaler(1))
    short = simulate(setup, FixedScaler(1), least_good_ratio=0.9)
    assert whole.good_ratio < 0.9
    assert short.good_ratio < 0.9
    assert short.requests < whole.requests
    reached = simulate(setup, FixedScaler(1), least_good_ratio=whole.good_ratio)
    assert reached == whole


def full_replica(**changes: object) -> Setup:
    """Two requests for a replica that has room for one, and steps of a second."""
    one_place = replace(LLAMA8B_L4, cost=StepCost(1.0, 0.0, 0.0, 0.0), max_concurrent_requests=1)
    trace = (Arrival(0.1, 10, 5), Arrival(0.2, 10, 5))
    setup = Setup(trace, 90.0, one_place, SLO_, max_replicas=1, initial_replicas=1)
    return replace(setup, **changes)


def test_a_request_that_waits_is_sent_as_soon_as_another_one_ends() -> None:
    result = simulate(full_replica(), FixedScaler(1))
    first, second = result.entries
    assert first.ttft_seconds == pytest.approx(1.0)
    # The first one ends at 5.1 s.
    assert second.ttft_seconds == pytest.approx(5.1 + 1.0 - 0.2)


@given(trace=traces)
@settings(max_examples=20)
def test_clients_that_name_their_limits_get_the_same_tokens(trace: Trace) -> None:
    named = simulate(setup_of(trace, limits_named=True), FixedScaler(2))
    hidden = simulate(setup_of(trace), FixedScaler(2))
    assert sorted((e.arrived, e.output_tokens) for e in named.entries) == sorted(
        (e.arrived, e.output_tokens) for e in hidden.entries
    )


def test_named_limits_let_more_requests_in_where_memory_is_short() -> None:
    few_blocks = replace(LLAMA8B_L4, num_blocks=64, max_length=4096)
    trace = tuple(Arrival(0.1 + n / 100, 64, 8) for n in range(20))
    slow, fast = (
        simulate(setup_of(trace, few_blocks, limits_named=named), FixedScaler(1))
        for named in (False, True)
    )
    assert (fast.ttft_p90 or 0.0) < (slow.ttft_p90 or 0.0)


class Spy(FixedScaler):
    """Notes when Prometheus knows of a replica for the first time."""

    seen_at: float | None = None

    def decide(self, seen: Observation) -> int:
        if self.seen_at is None and seen.scraped():
            self.seen_at = seen.now
        return 2


@pytest.mark.parametrize(("seconds", "at"), [(1.0, 1.0), (10.0, 5.0)])
def test_prometheus_scrapes_as_often_as_the_setup_says(seconds: float, at: float) -> None:
    spy = Spy(2, interval_seconds=1.0)
    simulate(setup_of((Arrival(0.5, 100, 5),), scrape_seconds=seconds), spy)
    assert spy.seen_at == at
