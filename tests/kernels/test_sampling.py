"""Sampling: the distribution, its edges, and that a row's draw is its own."""

import math

import pytest
import torch

from fastgen_kernels.torch_twins.sampling import Draw, sample
from fastgen_runtime.sampler import draw_for, uniform_at
from fastgen_runtime.step import Sampling

NUM_DRAWS = 4000
CHI_SQUARE_LIMIT = 3.09
"""Standard deviations; a fair sampler passes each fixed seed with probability 0.999."""


def draws_of(logits: torch.Tensor, temperature: float, top_p: float, seed: int) -> list[int]:
    draws = [
        draw_for(Sampling(temperature, top_p, seed), position) for position in range(NUM_DRAWS)
    ]
    return sample(logits.expand(NUM_DRAWS, -1), draws)


def chi_square(tokens: list[int], expected: list[float]) -> float:
    """Distance from the expected distribution in standard deviations (Wilson and Hilferty)."""
    wanted = {token: share * len(tokens) for token, share in enumerate(expected) if share > 0}
    assert set(tokens) <= set(wanted)
    value = sum((tokens.count(token) - count) ** 2 / count for token, count in wanted.items())
    freedom = len(wanted) - 1
    centre, spread = 1 - 2 / (9 * freedom), math.sqrt(2 / (9 * freedom))
    return ((value / freedom) ** (1 / 3) - centre) / spread


@pytest.mark.parametrize("seed", [0, 1, 2**63])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_distribution(seed: int, temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5])
    expected = torch.softmax(logits.double() / temperature, 0).tolist()
    assert chi_square(draws_of(logits, temperature, 1.0, seed), expected) < CHI_SQUARE_LIMIT


@pytest.mark.parametrize("seed", [3, 4])
def test_nucleus_distribution(seed: int) -> None:
    """top_p 0.7 of (0.4, 0.3, 0.2, 0.1): 0.4 and 0.3 reach it; the rest is never drawn."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    tokens = draws_of(logits, 1.0, 0.69, seed)
    assert chi_square(tokens, [0, 4 / 7, 0, 3 / 7]) < CHI_SQUARE_LIMIT


def test_a_nucleus_wider_than_the_likeliest_tokens() -> None:
    """A flat vocabulary: the nucleus is wider than the part that is ranked first."""
    tokens = draws_of(torch.zeros(5000), 1.0, 0.9, seed=5)
    assert len(set(tokens)) > 2000


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.3])
def test_a_tiny_nucleus_is_greedy(top_p: float) -> None:
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    assert set(draws_of(logits, 1.0, top_p, seed=6)) == {2}


def test_a_tiny_temperature_is_greedy() -> None:
    assert set(draws_of(torch.tensor([1.0, 3.0, 2.99]), 1e-6, 1.0, seed=7)) == {1}


def test_ties_of_a_tiny_nucleus_are_broken_as_greedy_breaks_them() -> None:
    logits = torch.tensor([0.0, 2.0, 2.0])
    assert set(draws_of(logits, 1.0, 1e-9, seed=8)) == {int(logits.argmax())}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_the_ends_of_the_unit_interval(uniform: float, top_p: float) -> None:
    """Every uniform number meets a token that has probability."""
    logits = torch.full((50,), -math.inf)
    logits[[3, 40]] = 0.0
    assert sample(logits[None], [Draw(1.0, top_p, uniform)])[0] in (3, 40)


def test_a_row_is_drawn_alone_as_in_a_batch() -> None:
    logits = torch.randn((6, 300), generator=torch.Generator().manual_seed(0))
    settings = [Sampling(0), Sampling(1, 1, 5), Sampling(1, 0.8, 5), Sampling(0.3, 0.5, 9)]
    draws = [draw_for(settings[row % 4], position=row) for row in range(6)]
    together = sample(logits, draws)
    assert together == [sample(logits[row : row + 1], [draws[row]])[0] for row in range(6)]
    assert together[0] == int(logits[0].argmax())


def test_uniforms_are_fixed_by_seed_and_position() -> None:
    """Golden values: a client's seed must give the same answer in later versions."""
    assert uniform_at(0, 0) == uniform_at(2**64, 0)
    assert len({uniform_at(2**64 - seed, 0) for seed in range(1, 20)}) == 19
    assert len({uniform_at(seed, position) for seed in range(20) for position in range(20)}) == 400
    assert [round(uniform_at(7, position), 12) for position in (0, 1)] == GOLDEN


GOLDEN = [0.87207345482, 0.082842687027]
