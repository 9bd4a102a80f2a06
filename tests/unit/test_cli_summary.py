"""Percentiles, and what counts as a good request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_cli.load import NOT_SENT, UNSENT, Sample
from fastgen_cli.percentile import percentile
from fastgen_cli.summary import ended_between, good_share, is_good, summarize

GOOD = Sample(
    sent_seconds=0.0,
    ended_seconds=2.0,
    status=200,
    ttft_seconds=0.4,
    tpot_seconds=0.05,
    gap_seconds=0.2,
    prompt_tokens=100,
    output_tokens=32,
    replica="a",
)
STRICT = SLO(
    time_to_first_token=TimeToFirstToken(milliseconds=300, per_prompt_token_microseconds=2000),
    time_per_output_token=TimePerOutputToken(milliseconds=60),
    token_gap=TokenGap(max_milliseconds=250),
)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_was_seen_and_leaves_its_share_below(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


def test_a_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"ttft_seconds": 0.5}, True),
        ({"ttft_seconds": 0.51}, False),
        ({"ttft_seconds": 0.41, "prompt_tokens": 10}, False),
        ({"tpot_seconds": 0.061}, False),
        ({"gap_seconds": 0.26}, False),
        ({"tpot_seconds": None, "gap_seconds": None}, True),
        ({"error": "the answer broke off"}, False),
        ({"status": 429, "ttft_seconds": None}, False),
    ],
)
def test_a_good_request_holds_every_target(change: dict[str, object], good: bool) -> None:
    assert is_good(replace(GOOD, **change), STRICT) is good


@pytest.mark.parametrize(
    ("status", "share"), [(200, 1.0), (400, 1.0), (429, 0.5), (503, 0.5), (UNSENT, 0.5)]
)
def test_the_clients_own_errors_do_not_count(status: int, share: float) -> None:
    other = GOOD if status == 200 else Sample(0.0, 1.0, status, error="refused")
    assert good_share([GOOD, other], STRICT) == share


def test_nothing_that_counts_has_no_share() -> None:
    assert good_share([Sample(0.0, 1.0, 400, error="bad")], SLO()) is None


def test_a_summary_covers_its_window() -> None:
    samples = [replace(GOOD, ended_seconds=float(at), replica="ab"[at % 2]) for at in range(10)]
    samples.append(Sample(9.0, 9.0, UNSENT, error=NOT_SENT))
    summary = summarize(ended_between(samples, 5, 10), 5, STRICT)
    assert summary.requests == 6
    assert summary.requests_per_second == 1.0
    assert summary.output_tokens_per_second == 32.0
    assert summary.statuses == {200: 5, UNSENT: 1}
    assert summary.replicas == {"b": 3, "a": 2}
    assert summary.good_share == pytest.approx(5 / 6)
