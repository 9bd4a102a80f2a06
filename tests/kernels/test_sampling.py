"""Sampling: the distribution, its edges, and that a row's draw is its own."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw, distribution, exponentials, sample
from fastgen_runtime.device.sampler import draw_of
from fastgen_runtime.engine.step import Chunk, Sampling

NUM_DRAWS = 4000
CHI_SQUARE_LIMIT = 3.09
"""Standard deviations; a fair sampler passes each fixed seed with probability 0.999."""


def draws_of(logits: torch.Tensor, sampling: Sampling, count: int = NUM_DRAWS) -> list[int]:
    draws = [
        draw_of(Chunk("a", [0], position, [0], sampling), sampling) for position in range(count)
    ]
    return sample(logits.expand(count, -1), draws)


def chi_square(tokens: list[int], expected: Sequence[float]) -> float:
    """Distance from the expected distribution in standard deviations (Wilson and Hilferty)."""
    wanted = {token: share * len(tokens) for token, share in enumerate(expected) if share > 0}
    assert set(tokens) <= set(wanted)
    value = sum((tokens.count(token) - count) ** 2 / count for token, count in wanted.items())
    freedom = len(wanted) - 1
    centre, spread = 1 - 2 / (9 * freedom), math.sqrt(2 / (9 * freedom))
    return ((value / freedom) ** (1 / 3) - centre) / spread


def reference(logits: NDArray[np.float32], draw: Draw) -> NDArray[np.float64]:
    """Probabilities [V] in float64, by sorting all tokens at each turn."""
    wide = logits.astype(np.float64)
    order = np.argsort(-wide, kind="stable")
    weights = np.exp((wide - wide.max()) / draw.temperature)
    if draw.top_k:
        weights[order[draw.top_k :]] = 0
    ranked = weights[order] / weights.sum()
    if draw.top_p < 1:
        weights[order[np.cumsum(ranked) - ranked >= draw.top_p]] = 0
    weights[weights < draw.min_p * weights.max()] = 0
    return weights / weights.sum()


def probabilities(logits: NDArray[np.float32], draw: Draw) -> NDArray[np.float64]:
    """What `distribution` says, for all tokens."""
    tokens, weights = distribution(logits, draw)
    result = np.zeros(len(logits))
    result[slice(None) if tokens is None else tokens] = weights / weights.sum(dtype=np.float64)
    return result


DRAWS = st.builds(
    Draw,
    temperature=st.floats(0.05, 3),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**20),
)


@given(st.integers(0, 2**32), st.integers(2, 3000), DRAWS)
@settings(max_examples=150)
def test_distribution_against_float64(seed: int, size: int, draw: Draw) -> None:
    """Rounding may decide about tokens at an edge that hold next to nothing."""
    logits = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    ours, expected = probabilities(logits, draw), reference(logits, draw)
    assert np.abs(ours - expected).sum() < 1e-5
    token = sample(torch.from_numpy(logits)[None], [draw])[0]
    with np.errstate(divide="ignore"):
        times = exponentials(draw.seed, draw.position, size) / expected
    # A token at an edge may be in here and out there; of the others the first one wins.
    clear = np.where(np.abs(ours - expected) < 1e-6 * ours, times, np.inf)
    assert times[token] <= clear.min() * (1 + 1e-5) or not np.isfinite(times[token])


@pytest.mark.parametrize("seed", [0, 1, 2**63])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_distribution(seed: int, temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5])
    expected = torch.softmax(logits.double() / temperature, 0).tolist()
    tokens = draws_of(logits, Sampling(temperature=temperature, seed=seed))
    assert chi_square(tokens, expected) < CHI_SQUARE_LIMIT


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 3}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"min_p": 0.74}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 3, "top_p": 0.8}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_k": 3, "top_p": 0.7}, [0, 4 / 7, 0, 3 / 7]),
        ({"repetition_penalty": 2.0}, [0.1, 0.4, 0.2, 0.3]),
    ],
    ids=repr,
)
def test_cut_distributions(seed: int, sampling: dict[str, float], expected: list[float]) -> None:
    """Of (0.4, 0.3, 0.2, 0.1): what is cut off is never drawn, the rest keeps its ratios."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    tokens = draws_of(logits, Sampling(seed=seed, **sampling))
    assert chi_square(tokens, expected) < CHI_SQUARE_LIMIT


def test_a_nucleus_wider_than_the_likeliest_tokens() -> None:
    """A flat vocabulary: the nucleus is wider than the part that is ranked first."""
    tokens = draws_of(torch.zeros(5000), Sampling(top_p=0.9, seed=5))
    assert len(set(tokens)) > 2000
    assert max(tokens) < 4500, "among equals the smaller ids stay"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=1e-9),
        Sampling(top_p=0.3),
        Sampling(top_k=1),
        Sampling(min_p=1.0),
        Sampling(temperature=1e-6),
        Sampling(temperature=1e-4),
    ],
    ids=repr,
)
def test_what_leaves_one_token_is_greedy(sampling: Sampling) -> None:
    """Ties are broken as greedy breaks them; logits that differ by rounding are no ties."""
    assert set(draws_of(torch.tensor([0.1, 0.2, 0.4, 0.3]).log(), sampling, 100)) == {2}
    if sampling.temperature == 1 and sampling.min_p == 0:
        assert set(draws_of(torch.tensor([0.0, 2.0, 2.0]), sampling, 100)) == {1}
        assert set(draws_of(torch.tensor([0.0, 20.0, 20.000002]), sampling, 100)) == {2}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("draw", [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.1}], ids=repr)
def test_only_what_has_probability_is_drawn(seed: int, draw: dict[str, Any]) -> None:
    logits = torch.full((700,), -math.inf)
    logits[[300, 400]] = 0.0
    assert sample(logits[None], [Draw(1.0, seed=seed, **draw)])[0] in (300, 400)


def test_rounding_of_logits_decides_about_no_token() -> None:
    """What batches of other shapes change of logits must not change what a seed says."""
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 2, (40, 50_000)).astype(np.float32)
    rounded = logits + generator.normal(0, 1e-5, logits.shape).astype(np.float32)
    draws = [Draw(1.5, seed=row) for row in range(len(logits))]
    assert sample(torch.from_numpy(logits), draws) == sample(torch.from_numpy(rounded), draws)


@pytest.mark.parametrize("logits", [[math.inf, 0.0], [math.nan, 0.0], [-math.inf, -math.inf]])
def test_logits_that_are_no_numbers_give_no_token(logits: list[float]) -> None:
    """They are one request's trouble, not its neighbours'."""
    rows = torch.tensor([logits, logits, logits, [0.0, 9.0]])
    banned = Adjustment(banned_token_ids=[0])
    draws = [Draw(1.0, top_p=0.9), Draw(0.0), Draw(0.0, adjustment=banned), Draw(0.0)]
    assert sample(rows, draws) == [None, None, None, 1]


def test_a_client_that_asks_for_more_than_a_float_holds_gets_that_token() -> None:
    penalty = Adjustment(repetition_penalty=1e-38, prompt_token_ids=[1])
    with np.errstate(over="ignore"):
        token = sample(torch.tensor([[0.0, 9.0]]), [Draw(1.0, adjustment=penalty)])
    assert token == [1]


def test_the_padding_of_a_vocabulary_is_never_chosen() -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0, 9.0]])
    draws = [Draw(0.0), Draw(0.0, adjustment=Adjustment({3: 90.0}))]
    assert sample(logits.expand(2, -1), draws, vocabulary=2) == [1, 1]
    drawn = [Draw(5.0, seed=seed) for seed in range(30)]
    assert set(sample(logits.expand(30, -1), drawn, vocabulary=2)) == {0, 1}


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    top_k=st.integers(0, 30),
    top_p=st.floats(0.1, 1),
    min_p=st.floats(0, 0.5),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, 299), st.floats(-100, 100), max_size=3),
    seed=st.integers(-(2**63), 2**64 - 1),
)
CHUNKS = st.builds(
    Chunk,
    request_id=st.just("a"),
    token_ids=st.just([1]),
    start=st.integers(0, 100),
    block_ids=st.just([0]),
    sampling=SAMPLINGS,
    prompt_token_ids=st.lists(st.integers(0, 299), max_size=8),
    output_token_ids=st.lists(st.integers(0, 299), max_size=8),
    banned_token_ids=st.lists(st.integers(0, 299), max_size=150),
)


def draw_for(chunk: Chunk) -> Draw:
    assert chunk.sampling is not None
    return draw_of(chunk, chunk.sampling)


@given(st.integers(0, 2**32), st.lists(CHUNKS, min_size=2, max_size=6))
@settings(max_examples=60)
def test_a_row_is_drawn_alone_as_in_a_batch(seed: int, chunks: list[Chunk]) -> None:
    logits = torch.randn((len(chunks), 300), generator=torch.Generator().manual_seed(seed)) * 3
    kept = logits.clone()
    draws = [draw_for(chunk) for chunk in chunks]
    together = sample(logits, draws, vocabulary=299)
    assert torch.equal(logits, kept)
    alone = [sample(logits[row : row + 1], [draw], 299)[0] for row, draw in enumerate(draws)]
    assert together == alone == sample(logits, [draw_for(chunk) for chunk in chunks], 299)
    for token, chunk in zip(together, chunks, strict=True):
        assert token not in chunk.banned_token_ids
        assert token < 299


def test_a_seed_decides_each_token_of_a_request() -> None:
    logits = torch.zeros(1000)
    texts = [draws_of(logits, Sampling(seed=seed), 50) for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_the_randomness_is_fixed_by_seed_position_and_token() -> None:
    """Golden values: a client's seed must give the same answer in later versions."""
    assert exponentials(0, 0, 3).tolist() == exponentials(2**64, 0, 3).tolist()
    assert exponentials(7, 1, 1000)[:10].tolist() == exponentials(7, 1, 10).tolist()
    assert len({exponentials(2**64 - seed, 0, 1)[0] for seed in range(1, 20)}) == 19
    firsts = {exponentials(seed, position, 1)[0] for seed in range(20) for position in range(20)}
    assert len(firsts) == 400
    ahead = {exponentials(7, 3, 64)[token] for token in range(64)}
    assert not ahead & set(exponentials(7, 4, 64)), "positions have no number in common"
    found = [round(float(exponentials(7, position, 2)[1]), 12) for position in (0, 1)]
    assert found == GOLDEN


GOLDEN = [1.219542107649, 0.168883657138]
