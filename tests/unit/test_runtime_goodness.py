"""Good, bad or not counted: every way in which a request can end."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.names import Outcome, Target
from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_runtime.engine.channel import Report
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.front.goodness import (
    End,
    Timings,
    TokenTimes,
    Verdict,
    classify,
    is_counted_by_balancer,
)
from fastgen_runtime.front.metrics import Metrics, Rate, with_target
from fastgen_runtime.front.slo_file import read_slo
from fastgen_runtime.startup_error import StartupError

SLO_OF_ALL = SLO(
    time_to_first_token=TimeToFirstToken(milliseconds=500, per_prompt_token_microseconds=1000),
    time_per_output_token=TimePerOutputToken(milliseconds=50),
    token_gap=TokenGap(max_milliseconds=200),
)


def timings(*token_times: float, waited: float = 0.0, prompt_tokens: int = 100) -> Timings:
    made = Timings(arrived=10.0, waited=waited, prompt_tokens=prompt_tokens)
    for time in token_times:
        made.note_token(10.0 + time)
    return made


GOOD = timings(0.55, 0.59, 0.63)
LATE = timings(0.61, 0.65)
SLOW = timings(0.1, 0.16, 0.22)
FROZEN = timings(*(0.1 + 0.01 * i for i in range(30)), 0.7)
LATE_AND_SLOW = timings(0.7, 1.0)


@pytest.mark.parametrize(
    ("request_timings", "end", "outcome", "missed"),
    [
        (GOOD, End.COMPLETED, Outcome.GOOD, ()),
        (LATE, End.COMPLETED, Outcome.LATE_FIRST_TOKEN, (Target.TTFT,)),
        (SLOW, End.COMPLETED, Outcome.SLOW_TOKENS, (Target.TPOT,)),
        (FROZEN, End.COMPLETED, Outcome.TOKEN_GAP, (Target.GAP,)),
        (
            LATE_AND_SLOW,
            End.COMPLETED,
            Outcome.LATE_FIRST_TOKEN,
            (Target.TTFT, Target.TPOT, Target.GAP),
        ),
        (timings(0.3, waited=0.29), End.COMPLETED, Outcome.GOOD, ()),
        (timings(0.3, waited=0.31), End.COMPLETED, Outcome.LATE_FIRST_TOKEN, (Target.TTFT,)),
        (timings(0.55, prompt_tokens=40), End.COMPLETED, Outcome.LATE_FIRST_TOKEN, (Target.TTFT,)),
        (timings(0.1), End.COMPLETED, Outcome.GOOD, ()),
        (GOOD, End.CANCELLED, Outcome.EXCLUDED, ()),
        (LATE, End.CANCELLED, Outcome.LATE_FIRST_TOKEN, (Target.TTFT,)),
        (SLOW, End.CANCELLED, Outcome.SLOW_TOKENS, (Target.TPOT,)),
        (GOOD, End.DEADLINE, Outcome.ERROR, ()),
        (LATE, End.DEADLINE, Outcome.LATE_FIRST_TOKEN, (Target.TTFT,)),
        (GOOD, End.REFUSED, Outcome.REFUSED, ()),
        (LATE, End.FAILED, Outcome.ERROR, ()),
        (timings(), End.INVALID, Outcome.EXCLUDED, ()),
    ],
)
def test_outcomes(
    request_timings: Timings, end: End, outcome: Outcome, missed: tuple[Target, ...]
) -> None:
    ended = request_timings.last or request_timings.arrived
    assert classify(request_timings, end, ended, SLO_OF_ALL) == Verdict(outcome, missed)


def test_who_cancels_before_the_target_has_passed_does_not_count() -> None:
    waiting = timings()
    assert classify(waiting, End.CANCELLED, 10.5, SLO_OF_ALL).outcome is Outcome.EXCLUDED
    late = classify(waiting, End.CANCELLED, 10.7, SLO_OF_ALL)
    assert late.outcome is Outcome.LATE_FIRST_TOKEN


def test_who_cancels_a_frozen_stream_has_seen_the_gap() -> None:
    assert classify(GOOD, End.CANCELLED, 10.63 + 0.19, SLO_OF_ALL).outcome is Outcome.EXCLUDED
    assert classify(GOOD, End.CANCELLED, 10.63 + 0.21, SLO_OF_ALL).outcome is Outcome.TOKEN_GAP


def test_without_targets_what_completes_is_good() -> None:
    assert classify(LATE_AND_SLOW, End.COMPLETED, 99.0, SLO()) == Verdict(Outcome.GOOD)


def test_a_balancer_counts_what_it_sees_itself() -> None:
    assert {end for end in End if is_counted_by_balancer(end)} == {End.REFUSED, End.FAILED}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20).map(sorted), st.floats(0, 5))
def test_latencies_are_what_they_are_defined_to_be(times: list[float], waited: float) -> None:
    made = Timings(arrived=0.0, waited=waited)
    for time in times:
        made.note_token(time)
    assert made.ttft_seconds == waited + times[0]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert made.longest_gap == max(gaps, default=0.0)
    assert made.output_tokens == len(times)
    if len(times) > 1:
        assert made.tpot_seconds == (times[-1] - times[0]) / (len(times) - 1)
    else:
        assert made.tpot_seconds is None


def text_of(metrics: Metrics) -> list[str]:
    return metrics.render().decode().splitlines()


def test_series_carry_the_deployment_and_exist_from_the_start() -> None:
    text = text_of(Metrics("llama", "team", SLO_OF_ALL))
    labels = 'deployment="llama",deployment_namespace="team"'
    for outcome in Outcome:
        assert f'fastgen_requests_total{{{labels},outcome="{outcome}"}} 0.0' in text
    for target in Target:
        assert f'fastgen_slo_target_misses_total{{{labels},target="{target}"}} 0.0' in text
    assert f"fastgen_time_to_first_token_seconds_count{{{labels}}} 0.0" in text
    assert not any("_created" in line or line.startswith("python_") for line in text)


def test_histograms_have_a_bucket_at_the_target() -> None:
    metrics = Metrics("d", "n", SLO(time_to_first_token=TimeToFirstToken(milliseconds=333)))
    metrics.observe_latencies(timings(0.3, 0.4))
    assert any('le="0.333"} 1.0' in line for line in text_of(metrics))
    metrics.set_slo(SLO(time_to_first_token=TimeToFirstToken(milliseconds=444)))
    text = text_of(metrics)
    assert not any('le="0.333"' in line for line in text)
    assert sum('le="0.444"' in line for line in text) == 1
    assert with_target((1.0, 2.0), 2.0) == (1.0, 2.0)


def test_the_slo_itself_is_told() -> None:
    metrics = Metrics("d", "n", SLO_OF_ALL)
    labels = 'deployment="d",deployment_namespace="n"'
    text = text_of(metrics)
    assert f"fastgen_slo_target_ratio{{{labels}}} 0.99" in text
    assert f'fastgen_slo_target_seconds{{{labels},target="tpot"}} 0.05' in text
    metrics.set_slo(SLO("99.9", time_to_first_token=TimeToFirstToken(milliseconds=500)))
    text = text_of(metrics)
    assert f"fastgen_slo_target_ratio{{{labels}}} 0.999" in text
    told = [line for line in text if line.startswith("fastgen_slo_target_seconds{")]
    assert told == [f'fastgen_slo_target_seconds{{{labels},target="ttft"}} 0.5']


def test_an_slo_with_the_same_targets_keeps_what_was_counted() -> None:
    metrics = Metrics("d", "n", SLO_OF_ALL)
    metrics.observe_latencies(timings(0.3, 0.4))
    metrics.set_slo(SLO_OF_ALL)
    assert any(
        line.startswith("fastgen_token_gap_seconds_count") and line.endswith(" 1.0")
        for line in text_of(metrics)
    )


def test_steps_are_counted_as_they_are_computed() -> None:
    metrics = Metrics("d", "n", SLO())
    for preemptions in (0, 2, 2):
        load = Load(1, 0, 0, 5, preemptions)
        metrics.note_step(Report(1, load, (), 30, 2, 32, 0.04))
    text = "\n".join(text_of(metrics))
    labels = '{deployment="d",deployment_namespace="n"}'
    assert f"fastgen_prompt_tokens_total{labels} 90.0" in text
    assert f"fastgen_output_tokens_total{labels} 6.0" in text
    assert f"fastgen_preemptions_total{labels} 2.0" in text
    assert f"fastgen_step_tokens_sum{labels} 96.0" in text


def test_steps_tell_what_was_predicted_and_what_the_prefix_cache_held() -> None:
    metrics = Metrics("d", "n", SLO())
    load = Load(1, 0, 0, 5, 0)
    metrics.note_step(Report(1, load, (), 30, 2, 32, 0.04, 70, None, 512))
    metrics.note_step(Report(1, load, (), 0, 2, 2, 0.03, 0, 0.02, 256))
    text = "\n".join(text_of(metrics))
    labels = '{deployment="d",deployment_namespace="n"}'
    assert f"fastgen_prefix_cache_queries_total{labels} 100.0" in text
    assert f"fastgen_prefix_cache_hits_total{labels} 70.0" in text
    assert f"fastgen_step_measured_to_predicted_ratio_sum{labels} 1.5" in text
    assert f"fastgen_step_measured_to_predicted_ratio_count{labels} 1.0" in text
    assert f"fastgen_budget_tokens{labels} 256.0" in text


def test_the_rate_forgets() -> None:
    rate = Rate(window_seconds=10)
    rate.add(100, now=0.0)
    rate.add(50, now=5.0)
    assert rate.per_second(5.0) == 15
    assert rate.per_second(11.0) == 5
    assert rate.per_second(100.0) == 0


def test_an_slo_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "slo.json"
    with pytest.raises(StartupError, match=r"--slo-file .*slo.json cannot be used"):
        read_slo(path)
    path.write_text('{"timeToFirstToken": {"milliseconds": "fast"}}')
    with pytest.raises(StartupError, match=r"timeToFirstToken.milliseconds"):
        read_slo(path)
    path.write_text('{"timeToFirstToken": {"milliseconds": 500}}')
    assert read_slo(path) == SLO(time_to_first_token=TimeToFirstToken(milliseconds=500))
    assert read_slo(None) == SLO()


def several(*choices: tuple[float, ...], complete: tuple[int, ...] = ()) -> Timings:
    made = Timings(arrived=10.0, prompt_tokens=100, choices=[TokenTimes() for _ in choices])
    for index, times in enumerate(choices):
        for time in times:
            made.note_token(10.0 + time, index)
        made.choices[index].is_complete = index in complete
    return made


def test_of_several_choices_the_first_to_begin_and_the_slowest_count() -> None:
    made = several((0.5, 0.6, 0.7), (0.1, 0.2, 0.5), (0.3,))
    assert made.output_tokens == 7
    assert made.ttft_seconds == pytest.approx(0.1)
    assert made.tpot_seconds == pytest.approx(0.2)
    assert made.longest_gap == pytest.approx(0.3)
    assert made.last == pytest.approx(10.7)
    nothing = several((), ())
    assert (nothing.ttft_seconds, nothing.tpot_seconds, nothing.longest_gap) == (None, None, 0.0)


def test_a_choice_that_is_complete_is_not_waited_for() -> None:
    """One ended long ago; the other was silent for less than the gap's target when it was cut."""
    ended_early = several((0.1, 0.14), (0.1, 0.14, 0.18, 0.22, 0.26, 0.3), complete=(0,))
    assert classify(ended_early, End.CANCELLED, 10.4, SLO_OF_ALL).outcome is Outcome.EXCLUDED
    both_open = several((0.1, 0.14), (0.1, 0.14, 0.18, 0.22, 0.26, 0.3))
    assert classify(both_open, End.CANCELLED, 10.4, SLO_OF_ALL).outcome is Outcome.TOKEN_GAP
