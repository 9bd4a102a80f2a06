"""What records add up to: effective throughput, goodput, percentiles, failures."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_cli.bench.effective import effective_throughput, moving_averages, succeeds
from fastgen_cli.bench.measures import measure
from fastgen_cli.bench.plots import as_svg, draw
from fastgen_cli.bench.record import Failure, Record
from fastgen_cli.bench.report import LoadFacts, Report, remarks

SECONDS = st.floats(0, 1e3)
STRICT = SLO(
    time_to_first_token=TimeToFirstToken(milliseconds=500),
    time_per_output_token=TimePerOutputToken(milliseconds=100),
    token_gap=TokenGap(max_milliseconds=250),
)


def record(ttft: float, gaps: Sequence[float], prompt_tokens: int = 512, **more: object) -> Record:
    times = [more.get("sent_seconds", 0.0) + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    values = {
        "asked_prompt_tokens": prompt_tokens,
        "asked_output_tokens": len(times),
        "sent_seconds": 0.0,
        "ended_seconds": times[-1],
        "token_seconds": tuple(times),
        "prompt_tokens": prompt_tokens,
        "output_tokens": len(times),
    }
    return Record(**(values | more))


def failed(kind: str, status: int, message: str = "", at: float = 0.0) -> Record:
    return Record(10, 10, at, at + 1.0, failure=Failure(kind, status, message))


@given(st.lists(SECONDS, max_size=60), st.integers(1, 40))
def test_the_moving_average_is_its_formula(values: list[float], span: int) -> None:
    weight = 1 - 2 / (span + 1)
    for k, average in enumerate(moving_averages(values, span)):
        weights = [weight**i for i in range(k + 1)]
        whole = sum(w * values[k - i] for i, w in enumerate(weights))
        assert average == pytest.approx(whole / sum(weights), rel=1e-9, abs=1e-9)


def test_the_moving_average_of_equal_values_is_that_value() -> None:
    assert moving_averages([0.25] * 40) == pytest.approx([0.25] * 40)


def test_pandas_first_values_by_hand() -> None:
    """Span 3, so w = 1/2: 1, (2 + 1/2) / (1 + 1/2), (6 + 2/2 + 1/4) / (1 + 1/2 + 1/4)."""
    assert moving_averages([1.0, 2.0, 6.0], 3) == pytest.approx([1.0, 2.5 / 1.5, 7.25 / 1.75])


@pytest.mark.parametrize(
    ("ttft", "gaps", "prompt_tokens", "verdict"),
    [
        (1.0, [0.2] * 5, 512, True),
        (1.01, [0.2] * 5, 512, False),
        (1.01, [0.2] * 5, 1024, True),
        (0.5, [], 512, True),
        (0.5, [0.25], 512, False),  # below 1/4 s, not at it
        (0.5, [0.1] * 20 + [1.0], 512, True),  # one freeze is averaged away
        (0.5, [1.0] + [0.1] * 20, 512, False),  # at the begin there is nothing to average with
    ],
)
def test_a_request_succeeds_by_first_token_and_moving_average(
    ttft: float, gaps: list[float], prompt_tokens: int, verdict: bool
) -> None:
    assert succeeds(record(ttft, gaps, prompt_tokens), 4) is verdict


@given(st.lists(st.lists(st.floats(0.001, 2), max_size=20), max_size=8))
def test_effective_throughput_falls_with_the_sla_and_never_exceeds_what_was_answered(
    gaps: list[list[float]],
) -> None:
    records = [record(0.1, one) for one in gaps]
    rates = [effective_throughput(records, 10.0, rate) for rate in (1, 2, 4, 8)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] <= len(records) / 10.0


def test_a_failure_never_succeeds() -> None:
    assert not succeeds(failed("HTTP 429", 429), 1)


def test_a_point_counts_from_the_first_start_to_the_last_end() -> None:
    early = record(0.5, [0.1] * 9, sent_seconds=2.0)
    late = record(0.5, [0.1] * 9, sent_seconds=10.6)
    point = measure("2 clients", [late, early], None, clients=2)
    assert point.seconds == pytest.approx(10.0)
    assert point.requests_per_second == pytest.approx(0.2)
    assert point.output_tokens_per_second == pytest.approx(2.0)
    assert point.total_tokens_per_second == pytest.approx((20 + 1024) / 10)
    assert point.ttft_seconds.p50 == pytest.approx(0.5)
    assert point.tpot_seconds.p99 == pytest.approx(0.1)
    assert point.token_gap_seconds.count == 18
    assert point.gap_seconds.count == 2
    assert (point.good_percent, point.goodput) == (None, None)
    assert point.effective_throughput["4"] == pytest.approx(0.2)


def test_time_per_token_is_by_the_endpoints_count_where_events_hold_several() -> None:
    point = measure("", [record(0.5, [0.4], output_tokens=5)], None)
    assert point.tpot_seconds.mean == pytest.approx(0.1)


def test_goodput_counts_refusals_as_bad_and_the_clients_faults_not_at_all() -> None:
    good, late = record(0.4, [0.05] * 4), record(0.6, [0.05] * 4)
    frozen = record(0.4, [0.05, 0.3, 0.05, 0.05, 0.05])
    records = [good, late, frozen, failed("HTTP 429", 429), failed("HTTP 400", 400)]
    point = measure("", records, STRICT)
    assert point.good_percent == pytest.approx(25.0)
    assert point.goodput == pytest.approx(1 / point.seconds)
    assert (point.requests, point.succeeded) == (5, 3)


def test_failures_are_counted_by_kind_with_an_example() -> None:
    records = [failed("HTTP 429", 429, "full"), failed("timed out", 0), failed("HTTP 429", 429)]
    point = measure("", records, STRICT)
    assert {kind: f.count for kind, f in point.failures.items()} == {"HTTP 429": 2, "timed out": 1}
    assert point.failures["HTTP 429"].example == "full"
    assert point.good_percent == 0.0
    assert point.latency_seconds is None


def test_nothing_measured_is_no_error() -> None:
    point = measure("", [], STRICT, is_complete=False)
    assert (point.requests, point.good_percent, point.seconds) == (0, None, 0.0)


def test_lengths_are_asked_and_counted() -> None:
    records = [record(0.1, [0.1] * 3), record(0.1, [0.1], asked_output_tokens=9)]
    lengths = measure("", records, None).output_tokens
    assert (lengths.asked_mean, lengths.counted_mean, lengths.exact_percent) == (6.5, 3.0, 50.0)


@pytest.mark.parametrize("slo", [None, STRICT])
def test_pictures_bear_what_was_not_measured(slo: SLO | None) -> None:
    points = [measure("a", [record(0.4, [0.05])], slo), measure("b", [], slo)]
    assert as_svg(draw([("alone", points)])).startswith("<svg")
    assert as_svg(draw([("one", points), ("other", points[:1])])).startswith("<svg")


def test_engines_side_by_side_have_a_line_each_in_one_colour() -> None:
    points = [measure("a", [record(0.4, [0.05])], STRICT)]
    figure = draw([("one", points), ("other", points)])
    colours = [[line.get_color() for line in axes.get_lines()] for axes in figure.axes]
    assert len(colours) == 4
    assert all(each == colours[0] for each in colours)
    assert len(set(colours[0])) == 2
    as_svg(figure)


@pytest.mark.parametrize(
    ("answers", "named"),
    [((0,), ""), ((99,), "load 0"), ((100,), ""), ((20, 100, 36), "load 0, load 2")],
)
def test_a_tail_of_too_few_answers_is_told_in_one_line(
    answers: tuple[int, ...], named: str
) -> None:
    points = [
        measure(f"load {place}", [record(0.5, [0.1])] * count, None)
        for place, count in enumerate(answers)
    ]
    facts = LoadFacts("512", "64", None, 1, True, None, "texts", True)
    report = Report("s", "t", "http://e", "HTTP", "m", facts, None, True, points)
    told = [f"{named}: fewer than 100 answers"] if named else []
    assert [remark[: len(told[0])] for remark in remarks(report)] == told
