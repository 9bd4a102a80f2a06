"""Traces: what is read, what is refused and how it is said, and what is made of them."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_cli.errors import UserError
from fastgen_cli.simulate.profile import DEFAULT, find_profile
from fastgen_cli.simulate.samples import Series, increase, quantile, slope
from fastgen_cli.simulate.slo import parse_slo
from fastgen_cli.simulate.trace import (
    Arrival,
    between,
    clipped,
    parse_trace,
    read_trace,
    scaled,
)
from fastgen_cli.simulate.workload import poisson, steady

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def parse(text: str) -> tuple[Arrival, ...]:
    return parse_trace(text.splitlines(), "t.csv")


def test_azure_traces_are_read_as_they_are() -> None:
    first, second = parse(AZURE)
    assert first == Arrival(0.0, 4808, 10)
    assert second.at == pytest.approx(0.052, abs=1e-6)


def test_seconds_columns_in_any_order_and_lines_out_of_order_are_read() -> None:
    text = "output_tokens,user,Timestamp,prompt_tokens\n5,a,12.5,100\n6,b,10,200\n\n"
    assert parse(text) == (Arrival(0.0, 200, 6), Arrival(2.5, 100, 5))


def test_of_two_names_for_one_thing_the_first_counts() -> None:
    text = "seconds,timestamp,prompt_tokens,output_tokens\n7,0,1,1\n7,3,1,1\n"
    assert [arrival.at for arrival in parse(text)] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty", "columns")),
        (
            "when,prompt,output\n1,2,3\n",
            (
                "line 1: no column called timestamp (or arrived_at, time, seconds); "
                "prompt_tokens (or contexttokens, input_tokens); output_tokens (or",
                "in any case. The columns are when, prompt, output",
            ),
        ),
        ("timestamp,prompt_tokens\n1,2\n", ("line 1", "output_tokens")),
        ("timestamp,prompt_tokens,output_tokens\n", ("no request",)),
        (
            "timestamp,prompt_tokens,output_tokens\n1,2,3\n2,x,3\n",
            ("t.csv, line 3, column prompt_tokens", "'x'", "whole number"),
        ),
        (
            "timestamp,prompt_tokens,output_tokens\n1,2,0\n",
            ("line 2, column output_tokens", "'0'", "from 1"),
        ),
        (
            "timestamp,prompt_tokens,output_tokens\nsoon,2,3\n",
            ("line 2, column timestamp", "'soon'", "seconds"),
        ),
        ("timestamp,prompt_tokens,output_tokens\nnan,2,3\n", ("column timestamp", "no time")),
        (
            "timestamp,prompt_tokens,output_tokens\n1,2\n",
            ("line 2, column output_tokens", "missing", "2 of 3"),
        ),
        ("timestamp,prompt_tokens,output_tokens\n1,-2,3\n", ("column prompt_tokens", "'-2'")),
        ("timestamp,prompt_tokens,output_tokens\n1,2.5,3\n", ("column prompt_tokens", "'2.5'")),
    ],
)
def test_what_cannot_be_read_is_named_with_line_and_column(
    text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    for word in words:
        assert word in str(error.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="UTF-8"):
        read_trace(binary)


@settings(max_examples=10)
@given(factor=st.floats(0.1, 4), seed=st.integers(0, 5))
def test_scaling_keeps_order_and_rate(factor: float, seed: int) -> None:
    trace = poisson(steady(10.0), 10.0, 200.0, seed)
    more = scaled(trace, factor, seed)
    assert list(more) == sorted(more, key=lambda a: a.at)
    assert len(more) == pytest.approx(factor * len(trace), rel=0.15)
    assert more == scaled(trace, factor, seed)


def test_a_part_of_a_trace_begins_at_zero() -> None:
    trace = (Arrival(1.0, 1, 1), Arrival(5.0, 2, 2), Arrival(9.0, 3, 3))
    assert between(trace, 5.0, 9.0) == (Arrival(0.0, 2, 2),)


def test_what_is_longer_than_the_model_is_shortened_and_counted() -> None:
    trace = (Arrival(0.0, 50, 10), Arrival(1.0, 95, 10), Arrival(2.0, 200, 10))
    short, count = clipped(trace, 100)
    assert [(a.prompt_tokens, a.output_tokens) for a in short] == [(50, 10), (95, 5), (99, 1)]
    assert count == 2


def test_prometheus_extrapolates_to_the_window_but_not_far() -> None:
    """Checked against promtool: 0 to 30 by 5 s with one a second, read at 30 s."""
    times = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    values = [t + 100 for t in times]
    assert increase(times, values, 30.0, 30.0) == pytest.approx(30.0)
    assert increase(times[:1], values[:1], 30.0, 30.0) is None
    # A counter that began at 0 is not extrapolated below it.
    assert increase([20.0, 25.0, 30.0], [1.0, 2.0, 3.0], 30.0, 30.0) == pytest.approx(2.5)
    # A reset counts from 0.
    assert increase([20.0, 25.0, 30.0], [50.0, 0.0, 5.0], 30.0, 10.0) == pytest.approx(5.0)


def test_a_failed_scrape_leaves_no_instant_value_but_the_range() -> None:
    series = Series()
    for time in (5.0, 10.0, 15.0):
        series.append(time, (time,))
    assert series.latest(16.0) == (15.0, (15.0,))
    series.end(20.0)
    assert series.latest(21.0) is None
    assert series.window(21.0, 10.0)[0] == [15.0]
    series.append(25.0, (25.0,))
    assert series.latest(26.0) == (25.0, (25.0,))
    assert series.was_there(12.0)
    assert not series.was_there(4.0)


def test_slopes_and_quantiles_are_promqls() -> None:
    assert slope([0.0, 5.0, 10.0], [1.0, 2.0, 3.0]) == pytest.approx(0.2)
    assert slope([0.0], [1.0]) is None
    bounds = (0.1, 0.5, 1.0, float("inf"))
    assert quantile(0.5, bounds, [0.0, 10.0, 20.0, 20.0]) == pytest.approx(0.5)
    assert quantile(0.75, bounds, [0.0, 10.0, 20.0, 20.0]) == pytest.approx(0.75)
    assert quantile(0.99, bounds, [0.0, 10.0, 10.0, 20.0]) == 1.0
    assert quantile(0.99, bounds, [0.0, 0.0, 0.0, 0.0]) is None


def test_an_slo_is_read_from_its_text_or_from_a_file(tmp_path: Path) -> None:
    slo = parse_slo("ttft=500ms+2000us,tpot=50ms,gap=0.25s,percent=99.5")
    assert slo.target_percent == "99.5"
    assert slo.time_to_first_token is not None
    assert slo.time_to_first_token.milliseconds == 500
    assert slo.time_to_first_token.per_prompt_token_microseconds == 2000
    assert slo.time_per_output_token is not None
    assert slo.time_per_output_token.milliseconds == 50
    assert slo.token_gap is not None
    assert slo.token_gap.max_milliseconds == 250
    file = tmp_path / "slo.json"
    file.write_bytes(msgspec.json.encode(slo))
    assert parse_slo(str(file)) == slo


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("ttft", "tpot", "gap")),
        ("ttft", ("'ttft'", "ttft=500ms")),
        ("speed=5ms", ("'speed'", "ttft, tpot, gap, percent")),
        ("ttft=fast", ("ttft", "'fast'", "ms")),
        ("tpot=5", ("tpot", "'5'", "ms")),
        ("tpot=-5ms", ("tpot", "'-5ms'")),
        ("ttft=1s,percent=0", ("percent", "'0'")),
        ("percent=99", ("no target",)),
        ("ttft=1s,ttft=2s", ("ttft", "twice")),
        ("none.json", ("none.json",)),
    ],
)
def test_an_slo_that_cannot_be_read_is_named(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        parse_slo(text)
    for word in words:
        assert word in str(error.value)


def test_profiles_come_by_name_or_from_a_file(tmp_path: Path) -> None:
    assert find_profile(DEFAULT.name) is DEFAULT
    file = tmp_path / "mine.json"
    file.write_text('{"base_seconds": 0.01, "seconds_per_token": 0.0001, "kv_blocks": 10}')
    profile = find_profile(str(file))
    assert (profile.name, profile.cost.base, profile.max_length) == ("mine", 0.01, 640)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("{}", "base_seconds"),
        ('{"base_seconds": 1, "seconds_per_token": 1, "speed": 2}', "speed"),
        ('{"base_seconds": -1, "seconds_per_token": 1}', "base_seconds"),
        ('{"base_seconds": 0, "seconds_per_token": 0}', "seconds_per_token"),
        ('{"base_seconds": 1, "seconds_per_token": 1, "kv_blocks": 0}', "kv_blocks"),
    ],
)
def test_a_profile_that_cannot_be_used_names_its_field(
    tmp_path: Path, body: str, word: str
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(body)
    with pytest.raises(UserError, match=word):
        find_profile(str(file))
    with pytest.raises(UserError, match="neither a file"):
        find_profile("unknown")
