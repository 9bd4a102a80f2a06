"""What the comparison with peers computes: requests, measures, bars."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.figures import (
    first_difference,
    measure,
    num_equal,
    spread,
    spreads,
    stall_measures,
)
from peers.protocol import Answer, Request, run_stepped
from peers.workloads import (
    TOKEN_IDS,
    Name,
    Workload,
    longest_total,
    mixture_lengths,
    warm_up,
    workload,
)


def answer(*times: float) -> Answer:
    return Answer(None, list(times))


@pytest.mark.parametrize("name", Name)
def test_lengths_are_the_same_in_every_round_and_token_ids_are_not(name: Name) -> None:
    one, same, other = (workload(name, seed) for seed in (1, 1, 2))
    assert one == same
    shapes = [[(len(each.prompt), each.output, each.at) for each in work.requests]
              for work in (one, other)]  # fmt: skip
    assert shapes[0] == shapes[1]
    assert [each.prompt for each in one.requests] != [each.prompt for each in other.requests]
    ids = [token for each in one.requests for token in each.prompt]
    assert TOKEN_IDS[0] <= min(ids) <= max(ids) < TOKEN_IDS[1]


def test_workloads_are_what_the_page_says() -> None:
    decode, single = workload(Name.DECODE, 1), workload(Name.SINGLE, 1)
    assert [(len(each.prompt), each.output) for each in decode.requests] == [(128, 128)] * 16
    assert [[(len(each.prompt), each.output) for each in part] for part in single.parts] == [
        [(512, 64)]
    ] * 4
    *streams, long = workload(Name.STALL, 1).requests
    assert [(len(each.prompt), each.output, each.at) for each in streams] == [(64, 600, 0.0)] * 8
    assert (len(long.prompt), long.output, long.at) == (4000, 2, 2.0)
    assert longest_total(workload(Name.STALL, 1)) == 4002


def test_the_mixture_has_the_papers_lengths() -> None:
    many = mixture_lengths(4000)
    for place, mean in ((0, 650), (1, 32)):
        lengths = [each[place] for each in many]
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.05)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in lengths) / len(lengths))
        assert deviation == pytest.approx(0.3 * mean, rel=0.1)
    assert mixture_lengths() == many[:16]


@pytest.mark.parametrize("name", Name)
@pytest.mark.parametrize("scale", [1 / 8, 1 / 64])
def test_a_scaled_workload_can_be_measured(name: Name, scale: float) -> None:
    small, whole = workload(name, 1, scale), workload(name, 1)
    assert len(small.requests) == len(whole.requests)
    assert all(each.output >= 2 and each.prompt for each in small.requests)
    assert longest_total(small) < longest_total(whole)


def test_the_warm_up_is_short_and_at_once() -> None:
    cut = warm_up(workload(Name.STALL, 1))
    assert len(cut.requests) == 9
    assert all(each.at == 0.0 and each.output <= 8 for each in cut.requests)
    assert max(len(each.prompt) for each in cut.requests) == 512


def test_rates_and_times_of_a_run_in_parts() -> None:
    work = Workload(Name.SINGLE, ((Request([1] * 10, 3),), (Request([1] * 20, 3),)))
    found = measure(work, [[answer(1.0, 1.5, 2.0)], [answer(2.0, 3.0, 4.0)]])
    assert found["wall_seconds"] == 6.0
    assert found["output_tokens_per_second"] == 1.0
    assert found["total_tokens_per_second"] == 6.0
    assert found["ttft_p50_seconds"] == 1.5
    assert found["tpot_p50_seconds"] == 0.75
    assert "longest_gap_seconds" not in found


def test_a_first_token_counts_from_the_requests_arrival() -> None:
    work = Workload(Name.MIXTURE, ((Request([1], 2, at=3.0),),))
    assert measure(work, [[answer(3.5, 4.0)]])["ttft_p50_seconds"] == 0.5


LONG = Request([1] * 4000, 2, at=2.0)


def test_a_gap_counts_when_it_touches_the_long_prompt() -> None:
    stream = answer(1.0, 1.9, 2.6, 2.7, 4.9, 9.0, 9.1)
    found = stall_measures([stream], LONG, answer(5.0, 5.1))
    assert found["long_ttft_seconds"] == 3.0
    # The gap that ends the computing of the prompt is one that its streams had to wait for.
    assert found["longest_gap_seconds"] == pytest.approx(4.1)
    assert found["usual_gap_seconds"] == pytest.approx(0.5)


def test_gaps_before_and_after_the_long_prompt_do_not_count() -> None:
    stream = answer(0.0, 1.5, 2.1, 2.2, 3.0, 9.0)
    found = stall_measures([stream], LONG, answer(3.0, 3.1))
    assert found["longest_gap_seconds"] == pytest.approx(0.8)


def test_streams_that_ended_before_the_long_prompt_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="no stream"):
        stall_measures([answer(0.1, 0.2)], LONG, answer(3.0, 3.1))


def test_a_stall_measures_the_streams_apart_from_the_long_prompt() -> None:
    work = Workload(Name.STALL, ((Request([1] * 4, 3), LONG),))
    found = measure(work, [[answer(1.0, 2.5, 4.0), answer(3.0, 9.0)]])
    assert found["ttft_p50_seconds"] == 1.0
    assert found["tpot_p50_seconds"] == 1.5
    assert found["longest_gap_seconds"] == 1.5


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_median_lies_within_its_extremes(values: list[float]) -> None:
    found = spread(values)
    assert found.least <= found.median <= found.most
    assert found.rounds == len(values)


def test_spreads_are_of_what_every_round_has() -> None:
    found = spreads([{"a": 1.0, "b": 1.0}, {"a": 3.0}])
    assert list(found) == ["a"]
    assert found["a"].median == 2.0


def test_answers_are_compared_token_by_token() -> None:
    assert num_equal([[1, 2], None, [1, 3]], [[1, 2], [1, 2], [1, 2]]) == 1
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2]) is None


class Counting:
    """An engine whose step gives each open request its next number."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}

    def add(self, number: int, request: Request) -> None:
        self.left[number] = request.output

    def step(self) -> list[tuple[int, int]]:
        tokens = [(number, left) for number, left in self.left.items()]
        self.left = {number: left - 1 for number, left in self.left.items() if left > 1}
        return tokens


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.001])), max_size=6))
def test_every_request_gets_its_tokens_after_it_arrived(
    wanted: list[tuple[int, float]]
) -> None:  # fmt: skip
    requests = [Request([1], output, at) for output, at in wanted]
    answers = run_stepped(Counting(), requests)
    for request, found in zip(requests, answers, strict=True):
        assert found.ids == list(range(request.output, 0, -1))
        assert found.times == sorted(found.times)
        assert found.times[0] >= request.at
