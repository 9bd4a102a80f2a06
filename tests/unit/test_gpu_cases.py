"""What the GPU benchmark decides without a GPU: floors, clients, rivals, verdicts."""

import math

import numpy as np
import pytest
from gpu_cases import DRY, FULL, DecodeCase, ModelShape, PrefillCase, evenness, prefill_batch
from gpu_clients import Answer, Slo, Wish, serve, serving_figures, wishes
from gpu_figures import LESS, MORE, Figure, Trouble, as_json, exit_code, sentences, table
from gpu_rivals import RIVALS, Rival
from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyCache, alone, request

from fastgen_kernels.attention_cost import prefill_cost
from fastgen_kernels.triton_kernels.attention_plan import prefill_tiles
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import ChunkResult, Step

LLAMA = ModelShape()
COPY = 4.3e12
"""Bytes per second of an H200's copies."""


def test_floors_are_those_of_the_notes() -> None:
    """Llama-3-8B on an H200: 15.0 GB of weights in 3.49 ms; 20 µs a layer for three contexts."""
    assert LLAMA.step_parameters * 2 == pytest.approx(15.0e9, rel=0.01)
    assert LLAMA.decode_floor_seconds([], COPY) == pytest.approx(3.49e-3, rel=0.01)
    assert LLAMA.token_bytes == 32 * 4096
    three = DecodeCase("three", [512, 4096, 16_384])
    assert three.cache_bytes / COPY == pytest.approx(20.0e-6, rel=0.01)
    contexts = LLAMA.decode_floor_seconds(three.contexts, COPY)
    assert contexts - LLAMA.decode_floor_seconds([], COPY) == pytest.approx(
        32 * three.cache_bytes / COPY
    )


def test_a_prompt_costs_two_operations_per_token_and_weight() -> None:
    rate = 400e12
    one, more = (LLAMA.prompt_floor_seconds(tokens, rate) for tokens in (1, 2049))
    assert one == pytest.approx(2 * LLAMA.step_parameters / rate)
    layers = LLAMA.step_parameters - LLAMA.vocabulary * LLAMA.hidden
    assert more - one == pytest.approx(2048 * 2 * layers / rate)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(2, 150)), min_size=1, max_size=4))
def test_operations_of_prompts_are_those_of_the_launch(chunks: list[tuple[int, int]]) -> None:
    case = PrefillCase("any", chunks, 2)
    tiles = prefill_tiles(prefill_batch(case, 16), 32)
    assert case.operations == prefill_cost(tiles, case.heads, 128, 2, 2).useful_operations


def test_aims_of_bandwidth_are_for_large_cases() -> None:
    """Each case that is held to a share reads 64 MB, the notes' bound, or more."""
    held = [case for case in FULL.decode if case.aim is not None]
    assert len(held) > 3
    assert all(case.cache_bytes >= 64e6 for case in held)
    assert any(len(case.contexts) == 1 and case.aim == 0.9 for case in held)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(0, 1 << 60))
def test_evenness_of_ctas(took: list[int], origin: int) -> None:
    begins = np.full(len(took), origin)
    told = evenness(begins, begins + np.array(took))
    last = max(*took, 1)
    assert told["seconds"] == pytest.approx(1e-9 * last)
    assert told["busy"] == pytest.approx(sum(took) / len(took) / last)
    assert told["first"] == pytest.approx(min(took) / last)


def test_wishes_are_the_same_for_a_seed_and_fit() -> None:
    for sizes in (FULL, DRY):
        one, same, other = (wishes(seed, 500, sizes) for seed in (1, 1, 2))
        assert one == same != other
        assert all(wish.prompt + wish.answer <= sizes.model.length for wish in one)
        assert all(2 <= wish.prompt <= sizes.most_step_tokens for wish in one)
    prompts = [wish.prompt for wish in wishes(3, 4000, FULL)]
    assert np.mean(prompts) == pytest.approx(2600, rel=0.03)
    assert np.std(prompts) == pytest.approx(780, rel=0.06)


class Recorded:
    """A toy model's runner, and the steps that it was given."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = 4
        self.steps: list[list[int]] = []
        self._cache = ToyCache(4)

    def run(self, step: Step) -> list[ChunkResult]:
        self.steps.append([len(chunk.token_ids) for chunk in step.chunks])
        return self._cache.run(step)


@pytest.mark.parametrize("name", RIVALS)
@given(
    asked=st.lists(st.tuples(st.integers(2, 20), st.integers(1, 6)), min_size=1, max_size=8),
    num_blocks=st.integers(7, 20),
    most_tokens=st.integers(1, 40),
)
def test_rivals_answer_everybody(
    name: str, asked: list[tuple[int, int]], num_blocks: int, most_tokens: int
) -> None:
    """With the tokens that each would get alone; prompts and decodes never share a step."""
    runner = Recorded(num_blocks)
    rival = Rival(runner, RIVALS[name], most_tokens)
    news = [request(str(n), prompt, answer) for n, (prompt, answer) in enumerate(asked)]
    for new in news:
        rival.add(new)
    answers: dict[str, int] = {}
    ended = set()
    while len(ended) < len(news):
        told = rival.step()
        assert told, "no progress"
        for request_id, is_last in told:
            answers[request_id] = answers.get(request_id, 0) + 1
            if is_last:
                ended.add(request_id)
    assert answers == {new.request_id: len(alone(new)) for new in news}
    assert rival.step() == []
    for sizes in runner.steps:
        is_mixed = max(sizes) > 1 and min(sizes) == 1
        assert not is_mixed
        assert max(sizes) == 1 or len(sizes) == 1 or sum(sizes) <= most_tokens


def test_vanilla_lets_nobody_in_while_a_batch_runs() -> None:
    orders: dict[str, list[str]] = {}
    for name, may_join in RIVALS.items():
        rival = Rival(Recorded(20), may_join, 40)
        rival.add(request("first", 5, 3))
        order = [told for told, _ in rival.step()]
        rival.add(request("second", 5, 3))
        while told := rival.step():
            order += [request_id for request_id, _ in told]
        orders[name] = order
    assert orders["vanilla"] == ["first"] * 3 + ["second"] * 3
    assert orders["prefill-first"][1] == "second"


class Counting:
    """A server that gives each open request a token per step; a step takes a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.most_open = 0
        self._left: dict[str, int] = {}

    def clock(self) -> float:
        return self.now

    def add(self, new: NewRequest) -> None:
        self._left[new.request_id] = new.max_tokens
        self.most_open = max(self.most_open, len(self._left))

    def step(self) -> list[tuple[str, bool]]:
        self.now += 1
        told = []
        for name in list(self._left):
            self._left[name] -= 1
            told.append((name, self._left[name] == 0))
            if not self._left[name]:
                del self._left[name]
        return told


def test_clients_wait_for_their_answers() -> None:
    server = Counting()
    lists = [[Wish(3, 2), Wish(3, 4)], [Wish(5, 1)], []]
    answers, took = serve(server, lists, 50, server.clock)
    assert server.most_open == 2
    assert took == 6
    assert sorted((one.arrived, len(one.tokens)) for one in answers) == [(0, 1), (0, 2), (2, 4)]
    assert {one.ttft for one in answers} == {1.0}
    assert sorted(one.tpot for one in answers) == [0.0, 1.0, 1.0]


def test_a_server_that_gives_nothing_is_not_waited_for() -> None:
    class Silent(Counting):
        def step(self) -> list[tuple[str, bool]]:
            self.now += 100
            return []

    server = Silent()
    with pytest.raises(RuntimeError, match="no token came"):
        serve(server, [[Wish(3, 2)]], 50, server.clock)


def test_goodput_counts_answers_that_keep_both_targets() -> None:
    answers = [
        Answer(0.0, [0.5, 0.52, 0.54]),  # good
        Answer(0.0, [1.5, 1.52]),  # late
        Answer(0.0, [0.5, 0.7]),  # slow
        Answer(1.0, [1.2]),  # good: nothing after its first token
    ]
    figures = {
        figure.name: figure.value
        for figure in serving_figures("splitfuse", 4, answers, 2.0, Slo(1.0, 0.05))
    }
    assert figures["goodput"] == 1.0
    assert figures["answers"] == 2.0
    assert figures["output"] == 4.0
    assert figures["TTFT P90"] == pytest.approx(np.quantile([500, 1500, 500, 200], 0.9))
    assert figures["TPOT P99"] == pytest.approx(np.quantile([20, 20, 200, 0], 0.99))


FAST = Figure("decode", "a", "share", 0.85, "", 1.0, (MORE, 0.8))
SLOW = Figure("decode", "b", "share", 0.7, "", 1.0, (MORE, 0.8))
RIGHT = Figure("checks", "c", "largest error", 1e-3, "", aim=(LESS, 2e-2))
WRONG = Figure("checks", "d", "largest error", math.nan, "", aim=(LESS, 2e-2))
PLAIN = Figure("machine", "H200", "copy", 4300.0, "GB/s")


def test_the_table_says_what_was_met() -> None:
    lines = table([FAST, SLOW, RIGHT, WRONG, PLAIN]).splitlines()
    words = ["aim", "met", "MISSED", "met", "MISSED", "GB/s"]
    assert [line.split()[-1] for line in lines] == words
    assert "4,300 GB/s" in lines[-1]
    gone = Trouble("peers", "FlashInfer", "is not installed")
    assert sentences([gone]) == "peers, FlashInfer: is not installed"


def test_what_is_no_number_is_none_in_the_file() -> None:
    file = as_json([WRONG, FAST], [Trouble("step", "the rest", "OutOfMemoryError")])
    assert [each["value"] for each in file["figures"]] == [None, 0.85]
    assert [each["met"] for each in file["figures"]] == [False, True]
    assert file["troubles"][0]["sentence"] == "OutOfMemoryError"


@pytest.mark.parametrize(
    ("figures", "troubles", "code"),
    [
        ([FAST, RIGHT, PLAIN], [], 0),
        ([SLOW], [], 0),
        ([WRONG], [], 1),
        ([Figure("step", "graphs", "tokens", 90.0, "%", aim=(MORE, 100.0))], [], 1),
        ([], [Trouble("peers", "FlashInfer", "is not installed")], 0),
        ([FAST], [Trouble("serving", "the rest", "no time was left")], 1),
    ],
)
def test_only_what_is_wrong_or_missing_is_a_failure(
    figures: list[Figure], troubles: list[Trouble], code: int
) -> None:
    assert exit_code(figures, troubles) == code
