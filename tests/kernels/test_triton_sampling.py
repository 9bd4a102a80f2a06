"""Sampling and log probabilities in Triton, interpreted: the twin's tokens.

Bounds: the kernel's race is run in float32, the twin's in float64. Their tokens differ only where
two come in within 1e-5 of one another, or where rounding decides which token at an edge is kept.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.torch_twins import sampling as twin
from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw, distribution, exponentials, random_words
from fastgen_kernels.torch_twins.token_logprobs import logprobs as twin_logprobs
from fastgen_kernels.triton_kernels.draw_table import DrawTable
from fastgen_kernels.triton_kernels.random import exponential, words
from fastgen_kernels.triton_kernels.sampling import sample, sample_launches
from fastgen_kernels.triton_kernels.token_logprobs import logprobs

pytestmark = [
    pytest.mark.filterwarnings("ignore:divide by zero"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow"),
    pytest.mark.filterwarnings("ignore:All-NaN"),
]
"""What numpy says of infinities; a GPU says nothing."""
FEW = settings(max_examples=8)
SIZE = 300


def logits_of(seed: int, rows: int, size: int = SIZE, digits: int = 8) -> Tensor:
    """digits: few make equal logits."""
    numbers = np.random.default_rng(seed).normal(0, 3, (rows, size)).round(digits)
    return torch.from_numpy(numbers.astype(np.float32))


def mask_of(allowed: list[int], size: int = SIZE) -> np.ndarray:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def assert_like_the_twin(logits: Tensor, draws: Sequence[Draw], size: int) -> None:
    tokens, expected = sample(logits, draws, size), twin.sample(logits, draws, size)
    for row, (token, other) in enumerate(zip(tokens, expected, strict=True)):
        if token == other:
            continue
        draw = draws[row]
        adjusted = logits[row, :size].float().numpy()
        if draw.adjustment is not None:
            adjusted = draw.adjustment.apply(adjusted)
        assert token is not None
        assert other is not None
        assert close_race(adjusted, draw, token, other), (token, other, draw)


def close_race(adjusted: np.ndarray, draw: Draw, token: int, other: int) -> bool:
    """Whether rounding may decide between two tokens: for one of them, or whether one is kept."""
    if draw.greedy:
        return False
    times = exponentials(draw.seed, draw.position, len(adjusted))
    weights = np.exp((adjusted - adjusted.max()).astype(np.float64) / draw.temperature)
    first, second = times[token] / weights[token], times[other] / weights[other]
    if abs(first - second) <= 1e-5 * max(first, second):
        return True
    edges = (draw.top_p - 1e-5, draw.top_p + 1e-5)
    kept = [distribution(adjusted, Draw(draw.temperature, draw.top_k, edge))[0] for edge in edges]
    return kept[0] is not None and (kept[1] is None or len(kept[0]) != len(kept[1]))


TOKENS = st.lists(st.integers(-2, SIZE + 5), max_size=20)
ADJUSTMENTS = st.builds(
    Adjustment,
    bias=st.dictionaries(st.integers(0, SIZE + 5), st.floats(-100, 100, width=32), max_size=4),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.3]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    banned_token_ids=TOKENS,
    mask=st.none() | st.lists(st.integers(0, SIZE - 10), min_size=1, max_size=60).map(mask_of),
    prompt_token_ids=TOKENS,
    output_token_ids=TOKENS,
)
DRAWS = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 40, SIZE - 10, SIZE, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**20),
    adjustment=st.none() | ADJUSTMENTS,
)


@FEW
@given(
    st.integers(0, 2**32),
    st.lists(DRAWS, min_size=1, max_size=4),
    st.sampled_from([8, 1, 0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_tokens_of_the_twin(seed: int, draws: list[Draw], digits: int, dtype: torch.dtype) -> None:
    """Any settings in one batch, with many equal logits and with none; the last ids are padding."""
    logits = logits_of(seed, len(draws), digits=digits).to(dtype)
    kept = logits.clone()
    assert_like_the_twin(logits, draws, SIZE - 7)
    assert torch.equal(logits, kept)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.integers(0, 2**32),
    st.integers(2, 5000),
    st.lists(DRAWS, min_size=1, max_size=3),
    st.sampled_from([8, 1]),
)
def test_tokens_of_the_twin_in_vocabularies_of_any_size(
    seed: int, size: int, draws: list[Draw], digits: int
) -> None:
    draws = [
        Draw(draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.seed, draw.position)
        for draw in draws
    ]
    assert_like_the_twin(logits_of(seed, len(draws), size, digits), draws, size)


@triton.jit
def _random_kernel(seeds, positions, bits, times, size: tl.constexpr):
    seed = tl.load(seeds).to(tl.uint64, bitcast=True)
    position = tl.load(positions).to(tl.uint64, bitcast=True)
    w0, w1, w2, w3 = words(tl.arange(0, size // 4).to(tl.uint64), seed, position)
    word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    tl.store(bits + tl.arange(0, size), word.to(tl.int64, bitcast=True))
    tl.store(times + tl.arange(0, size), exponential(word))


@FEW
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_random_words_are_the_twins_bit_by_bit(seed: int, position: int) -> None:
    """And exponentials of them within 1e-6, also those near 0, which win."""
    bits, times = torch.empty(256, dtype=torch.int64), torch.empty(256)
    _random_kernel[(1,)](torch.tensor([seed]), torch.tensor([position]), bits, times, size=256)
    assert (bits.numpy().view(np.uint64) == random_words(seed, position, 256)).all()
    np.testing.assert_allclose(times.numpy(), exponentials(seed, position, 256), rtol=1e-6)


@triton.jit
def _exponential_kernel(bits, times, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(times + at, exponential(tl.load(bits + at).to(tl.uint64, bitcast=True)))


def test_exponentials_of_the_ends_of_the_range() -> None:
    """Of words with all bits, with none, and around the half, where two formulas meet."""
    most = 2**64 - 1
    chosen = [0, 1 << 12, most, most - (1 << 12), 1 << 63, (1 << 63) - 1, most - (1 << 40), 1 << 40]
    bits = np.array(chosen, np.uint64)
    times = torch.empty(8)
    _exponential_kernel[(1,)](torch.from_numpy(bits.view(np.int64)), times, size=8)
    expected = -np.log(((bits >> np.uint64(12)).astype(np.longdouble) + 0.5) / 2**52)
    assert times.isfinite().all()
    assert (times > 0).all()
    np.testing.assert_allclose(times.numpy(), expected.astype(np.float64), rtol=1e-6)


def test_rows_without_numbers_give_no_token_and_harm_no_other() -> None:
    """FlashInfer's issues 384 and 2455: NaN, infinities, nothing left; the id is never outside."""
    rows = torch.full((6, SIZE), -torch.inf)
    rows[1] = torch.nan
    rows[2, 5], rows[2, 6] = torch.nan, 1.0
    rows[3, 7] = torch.inf
    rows[4, SIZE - 1] = 0.0
    rows[5] = 0.0
    for draw in (Draw(), Draw(1.0), Draw(1.0, top_k=3, top_p=0.5, min_p=0.1)):
        tokens = sample(rows, [draw] * 6)
        assert tokens[:4] == [None] * 4
        assert tokens[4] == SIZE - 1
        assert tokens[5] is not None
        assert 0 <= tokens[5] < SIZE


def test_one_hot_rows() -> None:
    """FlashInfer's issue 384: the only token there is, wherever it is, for every setting."""
    places = [0, 1, 31, 32, SIZE - 2, SIZE - 1]
    rows = torch.full((len(places), SIZE), -torch.inf)
    rows[range(len(places)), places] = torch.tensor([0.0, 80.0, -80.0, 1e30, -1e30, 1.0])
    for draw in (Draw(1.0), Draw(1.0, top_p=0.999), Draw(0.1, top_k=5), Draw(3.0, min_p=0.9)):
        assert sample(rows, [draw] * len(places)) == places


@pytest.mark.parametrize("draw", [Draw(), Draw(1.0, top_k=1), Draw(1.0, top_p=1e-9)], ids=repr)
def test_what_leaves_one_token_breaks_ties_by_the_smaller_id(draw: Draw) -> None:
    """mstar's issue 254: top_k of 1 is the argmax, on ties too, and zeros have one sign."""
    rows = torch.tensor([[0.0, 2.0, 2.0, 1.0], [-0.0, 0.0, -1.0, -0.0], [3.0, 3.0, 3.0, 3.0]])
    assert sample(rows, [draw] * 3) == [1, 0, 0]


def test_ties_at_the_edge_are_kept_by_id_not_by_value() -> None:
    """tokenspeed's issue 280: of equal logits as many as top_k asks for, the smaller ids."""
    logits = torch.zeros(1, SIZE)
    logits[0, 200] = 1.0
    for draws in ({"top_k": 3}, {"top_p": (np.e + 1.5) / (np.e + SIZE - 1)}):
        rows = [Draw(1.0, seed=seed, **draws) for seed in range(9)]
        assert set(sample(logits.expand(9, -1), rows)) == {0, 1, 200}


def test_a_token_that_has_nearly_half_is_drawn_so_often() -> None:
    """FreeToken's issue 345: the threshold is exact, not estimated. 0.6 of the draws, ± 4 σ."""
    logits = torch.full((1, 64), float(np.log(0.6 / 63)))
    logits[0, 17] = float(np.log(0.4))
    draws = [Draw(1.0, top_p=0.5, position=position) for position in range(24)]
    tokens = sample(logits.expand(24, -1), draws)
    kept = distribution(logits[0].numpy(), draws[0])
    assert kept[0] is not None
    share = 0.4 / (0.4 + 0.6 / 63 * (len(kept[0]) - 1))
    assert set(tokens) <= set(kept[0].tolist())
    assert abs(tokens.count(17) / 24 - share) < 4 * (share * (1 - share) / 24) ** 0.5


def test_a_row_is_drawn_alone_as_in_a_batch() -> None:
    logits = logits_of(3, 6, digits=1)
    adjustment = Adjustment({5: 3.0}, 1.2, prompt_token_ids=[1, 2], mask=mask_of([*range(290)]))
    draws = [
        Draw(1.0, 20, 0.9, 0.01, row, row, adjustment if row % 2 else None) for row in range(6)
    ]
    alone = [sample(logits[row : row + 1], draws[row : row + 1])[0] for row in range(6)]
    assert sample(logits, draws) == alone


def test_nothing_is_read_from_the_device_before_the_tokens() -> None:
    """Logits without memory: a launch that asked for their values could not be made."""
    logits = torch.empty(3, SIZE, device="meta")
    out = torch.empty(3, dtype=torch.int64, device="meta")
    draws = [Draw(1.0, 5, 0.9, adjustment=Adjustment({1: 1.0}, mask=mask_of([3])))] * 3
    launches = sample_launches(logits, DrawTable.of(draws, SIZE), SIZE, out)
    assert [launch.grid for launch in launches] == [(1,), (3,)]


def test_a_mask_that_allows_nothing_is_refused() -> None:
    draw = Draw(adjustment=Adjustment(mask=np.zeros(10, np.int32)))
    with pytest.raises(ValueError, match="a mask allows no token"):
        sample(torch.zeros(1, SIZE), [draw])


def test_no_rows() -> None:
    assert sample(torch.empty(0, SIZE), []) == []
    assert logprobs(torch.empty(0, SIZE), [], 3) == []


@FEW
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 5, 1023, 1024, 1025, 2050]),
    num_top=st.integers(0, 6),
    digits=st.sampled_from([8, 1]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_log_probabilities(
    seed: int, size: int, num_top: int, digits: int, dtype: torch.dtype
) -> None:
    """Ranks and ids of the twin, ties included; values within 1e-5."""
    logits = logits_of(seed, 3, size, digits).to(dtype)
    logits[0, 0] = -torch.inf if size > 1 else 0.0
    known = max(1, size - 2)
    chosen = [0, size - 1, seed % size]
    results = logprobs(logits, chosen, num_top, known)
    for ours, theirs in zip(results, twin_logprobs(logits, chosen, num_top, known), strict=True):
        assert ours.rank == theirs.rank
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        values = [value for _, value in theirs.top]
        assert [value for _, value in ours.top] == pytest.approx(values, abs=1e-5)
