"""Mixtures of experts in the compiled step, beyond what it does for all models."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from step_pair import VOCABULARY, Pair, Piece, compiled_into, tiny
from torch import Tensor

from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.models.model_config import Experts, ModelConfig
from fastgen_runtime.sources.model import cache_directory

Library = Callable[[StepModel, Isa], Path]
LENGTHS = (70, 1, 33)
EXPERTS = Experts(9, 3, 64, True, (True, False))
MIXED: ModelConfig = tiny(experts=EXPERTS)
ALL_CHOSEN: ModelConfig = tiny(experts=replace(EXPERTS, per_token=9))
BEST = isa_of(cpu_flags())

needs_avx2 = pytest.mark.skipif(BEST is None, reason="this CPU has no AVX2")
needs_avx512_bf16 = pytest.mark.skipif(
    BEST is not Isa.AVX512_BF16, reason="this CPU multiplies no brain floats"
)


@pytest.fixture(scope="module")
def library() -> Library:
    return compiled_into(cache_directory() / "cpu-step-tests")


def prompts() -> list[Piece]:
    rng = random.Random(1)
    return [
        Piece(rng.choices(range(1, VOCABULARY), k=length), 0, range(5 * number, 5 * number + 5))
        for number, length in enumerate(LENGTHS)
    ]


def each_alone(pair: Pair, pieces: Sequence[Piece]) -> Tensor:
    return torch.cat([pair.computed([piece]) for piece in pieces])


@pytest.mark.parametrize(
    ("isa", "cache", "config", "tolerance"),
    [
        pytest.param(Isa.AVX2, Element.FP32, MIXED, 1e-4, marks=needs_avx2),
        (Isa.PORTABLE, Element.BF16, ALL_CHOSEN, 0.1),
        pytest.param(Isa.AVX512_BF16, Element.BF16, ALL_CHOSEN, 0.1, marks=needs_avx512_bf16),
    ],
)
def test_weights_in_bfloat16(
    library: Library, isa: Isa, cache: Element, config: ModelConfig, tolerance: float
) -> None:
    """Where inputs are rounded, too, all experts compute: else rounding might choose another."""
    pair = Pair(config, library, isa, weights=Element.BF16, cache=cache)
    expected = pair.expected(prompts())
    assert expected.std() > 0.3, "hidden states too flat to tell anything"
    torch.testing.assert_close(pair.computed(prompts()), expected, atol=tolerance, rtol=0)
    pair.step.close()


@needs_avx512_bf16
def test_rounded_inputs_choose_the_same_experts_almost_always(library: Library) -> None:
    pair = Pair(MIXED, library, Isa.AVX512_BF16, weights=Element.BF16, cache=Element.BF16)
    difference = (pair.computed(prompts()) - pair.expected(prompts())).abs().amax(-1)
    assert (difference < 0.1).float().mean() > 0.9
    assert torch.equal(pair.computed(prompts()), each_alone(pair, prompts()))
    pair.step.close()


@needs_avx2
def test_how_many_threads_compute_changes_no_bit(library: Library) -> None:
    results = []
    for threads in (1, 2, 7):
        pair = Pair(MIXED, library, Isa.AVX2, threads=threads)
        results.append(pair.computed(prompts()))
        pair.step.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_avx2
def test_of_equally_likely_experts_the_first_compute(library: Library) -> None:
    """The weights of all others are no numbers."""
    pair = Pair(MIXED, library, Isa.AVX2)
    mixture = pair.step_weights.layers[0].mixture
    assert mixture is not None
    mixture.router.weights.zero_()
    for expert in mixture.experts[EXPERTS.per_token :]:
        expert.up.weights.fill_(torch.nan)
    assert pair.computed(prompts()).isfinite().all()
    for expert in mixture.experts[: EXPERTS.per_token]:
        held = expert.up.weights.clone()
        expert.up.weights.fill_(torch.nan)
        assert pair.computed(prompts()).isnan().all()
        expert.up.weights.copy_(held)
    pair.step.close()


@needs_avx2
def test_a_row_that_is_no_number_leaves_the_others_alone(library: Library) -> None:
    pair = Pair(replace(MIXED, tied_embeddings=False), library, Isa.AVX2)
    assert pair.step_weights.embedding is not None
    pair.step_weights.embedding[0] = torch.nan
    expected = pair.computed(prompts())
    spoilt = Piece([0, 0], 0, range(20, 25))
    computed = pair.computed([prompts()[0], spoilt, *prompts()[1:]])
    first = LENGTHS[0]
    assert computed[first : first + 2].isnan().all()
    assert torch.equal(torch.cat([computed[:first], computed[first + 2 :]]), expected)
    pair.step.close()
