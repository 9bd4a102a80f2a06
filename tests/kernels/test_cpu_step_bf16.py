"""On a CPU that multiplies brain floats the compiled step computes what the torch twin computes.

The twin's weights are rounded as the step's are, and its arithmetic is in float32. The step rounds
the inputs of linear layers and attention, keys and values to bfloat16, whose relative error is at
most 2^-9.
"""

from collections.abc import Iterator
from typing import Final

import pytest
import torch
from step_batches import LENGTH, by_request, random_steps, shuffled_blocks, whole
from step_models import MODELS
from step_pair import Pair, compiled_into
from torch import Tensor

from fastgen_kernels.cpu_step.description import Element
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.sources.model import cache_directory

pytestmark = pytest.mark.skipif(
    isa_of(cpu_flags()) is not Isa.AVX512_BF16, reason="this CPU multiplies no brain floats"
)

BOUND: Final = 0.03
"""Of hidden states after two layers, which are about 1; they reach 0.021."""
LOGITS_BOUND: Final = 0.02
"""Of the output layer alone, in standard deviations of logits; they reach 0.010."""
NAMES: Final = (
    "heads of three vectors, norms of queries and keys, windows",
    "int8, groups that end within a row",
    "int8, odd numbers of inputs",
)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    config, block_size, int8_group = MODELS[request.param]
    library = compiled_into(cache_directory() / "cpu-step-tests")
    pair = Pair(
        config, library, Isa.AVX512_BF16, block_size,
        weights=Element.BF16, cache=Element.BF16, int8_group=int8_group,
    )  # fmt: skip
    yield pair
    pair.step.close()


def check(computed: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(computed, expected, atol=BOUND, rtol=0)


def test_whole_prompts_are_the_twins(pair: Pair) -> None:
    pieces = whole(pair, shuffled_blocks(pair, 1))
    expected = pair.expected(pieces)
    assert 0.8 < expected.std() < 1.2
    check(pair.computed(pieces), expected)


@pytest.mark.parametrize("seed", [1, 2])
def test_chunks_in_mixed_batches_are_the_twins(pair: Pair, seed: int) -> None:
    for pieces in random_steps(seed, shuffled_blocks(pair, seed)):
        expected = pair.expected(pieces)
        check(pair.computed(pieces), expected)


def test_rows_and_logits(pair: Pair) -> None:
    pieces = whole(pair, shuffled_blocks(pair, 5))
    rows = [LENGTH - 1, 0, 2 * LENGTH - 1, 0]
    hidden = pair.computed(pieces, rows)
    check(hidden, pair.expected(pieces, rows))
    expected = pair.expected_logits(hidden)
    bound = LOGITS_BOUND * float(expected.std())
    torch.testing.assert_close(pair.step.lm_head(hidden), expected, atol=bound, rtol=0)


def test_what_a_batch_holds_changes_no_bit(pair: Pair) -> None:
    blocks = shuffled_blocks(pair, 3)
    alone = torch.stack([pair.computed([piece]) for piece in whole(pair, blocks)])
    steps = list(random_steps(3, shuffled_blocks(pair, 4)))
    assert torch.equal(by_request(steps, [pair.computed(pieces) for pieces in steps]), alone)
