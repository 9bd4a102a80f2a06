"""What is sent, and when: lengths, arrivals, loads."""

from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_cli.bench.keys import Keys, read_keys
from fastgen_cli.bench.lengths import Fixed, FromTrace, Normal, Uniform, drawer, parse_lengths
from fastgen_cli.bench.loads import (
    ClosedLoad,
    Limits,
    OpenLoad,
    make_loads,
    make_shape,
    requests_of,
)
from fastgen_cli.bench.requests import Shape, closed_loop, lengths_of, open_loop, poisson
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.trace import Arrival

TRACE = (Arrival(0.0, 100, 10), Arrival(2.0, 3000, 20), Arrival(5.0, 7, 30))
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512", Fixed(512)),
        ("uniform:1-9", Uniform(1, 9)),
        ("normal:512,0.3", Normal(512, 0.3)),
        ("trace", FromTrace()),
    ],
)
def test_lengths_are_read_and_written_alike(text: str, lengths: object) -> None:
    assert parse_lengths(text, "--prompt-tokens") == lengths
    assert str(lengths) == text


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "uniform:9-1", "uniform:0-5", "normal:0,1", "normal:5", "many", "1.5"]
)
def test_what_is_no_length_is_named_with_its_flag(text: str) -> None:
    with pytest.raises(UserError, match="--output-tokens"):
        parse_lengths(text, "--output-tokens")


@given(SEEDS, st.integers(1, 500), st.integers(0, 500))
def test_uniform_lengths_stay_in_their_range(seed: int, least: int, more: int) -> None:
    draw = drawer(Uniform(least, least + more), Random(seed))
    assert all(least <= draw() <= least + more for _ in range(50))


@given(SEEDS, st.floats(1, 100), st.floats(0, 5))
def test_normal_lengths_are_at_least_one_token(seed: int, mean: float, cv: float) -> None:
    draw = drawer(Normal(mean, cv), Random(seed))
    assert min(draw() for _ in range(50)) >= 1


def test_normal_lengths_have_their_mean_and_spread() -> None:
    draw = drawer(Normal(1000, 0.3), Random(1))
    drawn = [draw() for _ in range(4000)]
    assert fmean(drawn) == pytest.approx(1000, rel=0.03)
    assert pstdev(drawn) == pytest.approx(300, rel=0.06)


def test_poisson_arrivals_keep_their_rate_and_vary_as_much_as_they_last() -> None:
    times = list(islice(poisson(4.0, 3), 8000))
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.25, rel=0.08)


@given(SEEDS, st.integers(2, 4000))
def test_no_request_is_longer_than_the_longest(seed: int, most: int) -> None:
    shape = Shape(Normal(2000, 0.9), Uniform(1, 3000), max_length=most)
    for prompt, output in islice(lengths_of(shape, seed), 50):
        assert prompt >= 1
        assert output >= 1
        assert prompt + output <= most


def test_a_trace_gives_times_and_lengths_and_a_speed_the_pace() -> None:
    shape = make_shape(None, None, TRACE, None)
    requests = list(open_loop(shape, 0, None, 4.0, None, speed=2.0))
    assert [r.at_seconds for r in requests] == [0.0, 1.0, 2.5]
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [
        (100, 10),
        (3000, 20),
        (7, 30),
    ]
    assert [r.at_seconds for r in open_loop(shape, 0, None, 2.5, None, speed=2.0)] == [0.0, 1.0]
    assert len(list(open_loop(shape, 0, 1, 9.0, None))) == 1


def test_lengths_of_a_trace_serve_a_closed_loop_over_and_over() -> None:
    shape = make_shape("trace", "5", TRACE, None)
    requests = list(closed_loop(shape, 0, 5))
    assert [r.prompt_tokens for r in requests] == [100, 3000, 7, 100, 3000]
    assert {r.output_tokens for r in requests} == {5}


def test_lengths_of_a_trace_need_a_trace() -> None:
    with pytest.raises(UserError, match="--trace"):
        make_shape("trace", None, (), None)


@given(SEEDS)
def test_loads_of_a_seed_have_the_same_lengths_and_no_number_in_common(seed: int) -> None:
    shape = make_shape(None, None, (), None)
    loads = [ClosedLoad(2), OpenLoad(3.0, limits=Limits(requests=40))]
    first, second = (list(requests_of(load, i, shape, seed)) for i, load in enumerate(loads))
    assert [r.prompt_tokens for r in first] == [r.prompt_tokens for r in second]
    assert not {r.number for r in first} & {r.number for r in second}
    assert first == list(requests_of(loads[0], 0, shape, seed))


def test_a_closed_load_sends_as_many_as_fastgens_benchmark_unless_limited() -> None:
    assert ClosedLoad(8).most_requests == 64
    assert ClosedLoad(8, Limits(requests=3)).most_requests == 3
    assert ClosedLoad(8, Limits(seconds=5)).most_requests > 10_000
    assert ClosedLoad(1).name == "1 client"


@pytest.mark.parametrize(
    ("clients", "rates", "trace", "names"),
    [
        (None, None, (), ["1 client", "2 clients", "4 clients", "8 clients", "16 clients",
                          "32 clients"]),
        ("3", None, TRACE, ["3 clients"]),
        (None, "0.5,2", TRACE, ["0.5/s", "2/s"]),
        (None, None, TRACE, ["trace", "trace × 2"]),
    ],
)  # fmt: skip
def test_flags_name_the_loads(
    clients: str | None, rates: str | None, trace: tuple[Arrival, ...], names: list[str]
) -> None:
    speeds = "1,2" if trace and not clients and not rates else "1"
    loads = make_loads(clients, rates, trace, speeds, Limits())
    assert [load.name for load in loads] == names


@pytest.mark.parametrize(
    ("clients", "rates", "words"),
    [
        ("1", "1", "--rate"),
        ("1.5", None, "--clients"),
        ("0", None, "--clients"),
        ("", None, "--clients"),
        (None, "fast", "--rate"),
        (None, "inf", "--rate"),
    ],
)
def test_loads_that_cannot_be_are_refused(
    clients: str | None, rates: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        make_loads(clients, rates, (), "1", Limits())


def test_keys_take_turns_and_are_in_no_text() -> None:
    keys = Keys(("sk-one", "sk-two"))
    assert [keys.of(number) for number in range(3)] == ["sk-one", "sk-two", "sk-one"]
    assert "sk-" not in repr(keys)
    assert "sk-" not in keys.hidden("wrong key sk-two, nor sk-one")
    assert Keys().of(0) is None


def test_keys_come_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a\nb\n")
    environment = {"OPENAI_API_KEY": "c"}
    assert read_keys(file, environment).values == ("a", "b")
    assert read_keys(None, environment).values == ("c",)
    assert read_keys(None, {}).values == ()
    for content in ("", "ключ"):
        file.write_text(content)
        with pytest.raises(UserError, match="--api-key-file"):
            read_keys(file, environment)
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(tmp_path / "none", environment)
