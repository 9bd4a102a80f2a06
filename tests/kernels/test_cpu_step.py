"""The compiled step computes what the torch twin computes, however a batch is cut."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from step_pair import VOCABULARY, Pair, Piece, compiled_into, tiny
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.models.model_config import Block, ModelConfig, NormKind

LENGTH = 150
REQUESTS = 3
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "llama": (tiny(), 16),
    "heads of three vectors, norms of queries and keys, windows": (
        tiny(
            num_heads=6, num_kv_heads=2, head_dim=48, query_key_norm=True, windows=(21, None),
            tied_embeddings=False, qkv_bias=True,
        ),
        128,
    ),
    "parallel norms, a key head for all, biases": (
        tiny(
            block=Block.PARALLEL_NORMS, norm=NormKind.LAYER, norm_bias=True, num_kv_heads=1,
            gated=False, activation=Activation.GELU, qkv_bias=True, output_bias=True,
            mlp_bias=True, rotary_dim=6, intermediate_size=41,
        ),
        32,
    ),
    "parallel, a key head each": (
        tiny(
            block=Block.PARALLEL, norm=NormKind.LAYER, num_kv_heads=4, gated=False,
            activation=Activation.GELU_TANH, head_bias=True, tied_embeddings=False,
            hidden_size=33,
        ),
        64,
    ),
    "norms after, learned positions, no last norm": (
        tiny(
            block=Block.POST_NORM, norm=NormKind.LAYER, norm_bias=True, rotary_dim=0,
            position_offset=2, final_norm=False, gated=False, activation=Activation.RELU,
            output_bias=True,
        ),
        16,
    ),
}  # fmt: skip
"""With a block size. Sizes are no multiples of a tile's, where they may be."""

needs_avx2 = pytest.mark.skipif(isa_of(cpu_flags()) is None, reason="this CPU has no AVX2")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[StepModel, Isa], Path]:
    return compiled_into(tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, library: Callable[[StepModel, Isa], Path]
) -> Iterator[Pair]:
    config, block_size = MODELS[request.param]
    pair = Pair(config, library, Isa.AVX2, block_size)
    yield pair
    pair.step.close()


def tokens(seed: int, count: int = LENGTH) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def shuffled_blocks(pair: Pair, seed: int) -> list[list[int]]:
    """Of each request, enough for LENGTH tokens."""
    each = -(-LENGTH // pair.block_size)
    order = random.Random(seed).sample(range(pair.blocks), each * REQUESTS)
    return [order[each * number : each * (number + 1)] for number in range(REQUESTS)]


def random_steps(seed: int, blocks: Sequence[Sequence[int]]) -> Iterator[list[Piece]]:
    """REQUESTS prompts of LENGTH tokens, in steps of chunks of random requests and sizes."""
    rng = random.Random(seed)
    done = [0] * REQUESTS
    while unfinished := [number for number in range(REQUESTS) if done[number] < LENGTH]:
        pieces = []
        for number in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            size = min(rng.choice([1, 1, 2, rng.randint(1, 90)]), LENGTH - done[number])
            end = done[number] + size
            ids = tokens(number)[done[number] : end]
            pieces.append(Piece(ids, done[number], blocks[number]))
            done[number] = end
        yield pieces


def whole(pair: Pair, blocks: Sequence[Sequence[int]]) -> list[Piece]:
    return [Piece(tokens(number), 0, blocks[number]) for number in range(REQUESTS)]


def by_request(steps: Sequence[Sequence[Piece]], computed: Sequence[Tensor]) -> Tensor:
    """[REQUESTS, LENGTH, hidden] of what the steps brought."""
    rows: list[list[Tensor]] = [[] for _ in range(REQUESTS)]
    for pieces, hidden in zip(steps, computed, strict=True):
        parts = hidden.split([len(piece.token_ids) for piece in pieces])
        for piece, part in zip(pieces, parts, strict=True):
            number = next(n for n in range(REQUESTS) if tokens(n)[piece.start :][: len(part)]
                          == list(piece.token_ids))  # fmt: skip
            rows[number].append(part)
    return torch.stack([torch.cat(some) for some in rows])


@needs_avx2
def test_whole_prompts_are_the_twins(pair: Pair) -> None:
    pieces = whole(pair, shuffled_blocks(pair, 1))
    expected = pair.expected(pieces)
    assert expected.std() > 0.3, "hidden states too flat to tell anything"
    torch.testing.assert_close(pair.computed(pieces), expected, atol=1e-4, rtol=0)


@needs_avx2
@pytest.mark.parametrize("seed", [1, 2])
def test_chunks_in_mixed_batches_are_the_twins(pair: Pair, seed: int) -> None:
    for pieces in random_steps(seed, shuffled_blocks(pair, seed)):
        expected = pair.expected(pieces)
        torch.testing.assert_close(pair.computed(pieces), expected, atol=1e-4, rtol=0)


@needs_avx2
def test_what_a_batch_holds_changes_no_bit(pair: Pair) -> None:
    """A row is computed in the same order alone and in company, whole and in chunks."""
    blocks = shuffled_blocks(pair, 3)
    alone = torch.stack([pair.computed([piece]) for piece in whole(pair, blocks)])
    steps = list(random_steps(3, shuffled_blocks(pair, 4)))
    assert torch.equal(by_request(steps, [pair.computed(pieces) for pieces in steps]), alone)


@needs_avx2
def test_rows_and_logits(pair: Pair) -> None:
    pieces = whole(pair, shuffled_blocks(pair, 5))
    rows = [LENGTH - 1, 0, 2 * LENGTH - 1, 0]
    hidden = pair.computed(pieces, rows)
    torch.testing.assert_close(hidden, pair.expected(pieces, rows), atol=1e-4, rtol=0)
    logits = pair.step.lm_head(hidden)
    torch.testing.assert_close(logits, pair.expected_logits(hidden), atol=1e-4, rtol=1e-5)
    assert pair.computed(pieces, []).shape == (0, hidden.shape[1])


@needs_avx2
def test_no_thread_more_and_many(library: Callable[[StepModel, Isa], Path]) -> None:
    """How many threads compute changes no bit either."""
    results = []
    for threads in (1, 2, 7):
        pair = Pair(tiny(), library, Isa.AVX2, threads=threads)
        results.append(pair.computed(whole(pair, shuffled_blocks(pair, 1))))
        pair.step.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_avx2
def test_neighbours_on_the_cores_change_no_bit(library: Callable[[StepModel, Isa], Path]) -> None:
    """More threads than cores and processes that never sleep: threads come late to their job."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    pair = Pair(tiny(), library, Isa.AVX2, threads=5)
    try:
        pieces = whole(pair, shuffled_blocks(pair, 1))
        results = [pair.computed(pieces) for _ in range(30)]
    finally:
        for process in busy:
            process.kill()
            process.wait()
        pair.step.close()
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], pair.expected(pieces), atol=1e-4, rtol=0)


@needs_avx2
def test_a_forked_process_computes_too(library: Callable[[StepModel, Isa], Path]) -> None:
    """With threads of its own: its parent's do not come along."""
    pair = Pair(tiny(), library, Isa.AVX2)
    pieces = whole(pair, shuffled_blocks(pair, 1))
    expected = pair.computed(pieces)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(pair.computed(pieces), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(pair.computed(pieces), expected)
    pair.step.close()


@pytest.mark.parametrize(
    ("isa", "cache", "tolerance"),
    [
        pytest.param(Isa.AVX2, Element.FP32, 1e-4, marks=needs_avx2),
        pytest.param(Isa.AVX2, Element.BF16, 0.05, marks=needs_avx2),
        (Isa.PORTABLE, Element.BF16, 0.1),
    ],
)
def test_weights_in_bfloat16(
    library: Callable[[StepModel, Isa], Path], isa: Isa, cache: Element, tolerance: float
) -> None:
    """Exact where only weights are rounded, as the twin's are; else within bfloat16's rounding."""
    pair = Pair(tiny(), library, isa, weights=Element.BF16, cache=cache)
    for pieces in random_steps(1, shuffled_blocks(pair, 1)):
        expected = pair.expected(pieces)
        torch.testing.assert_close(pair.computed(pieces), expected, atol=tolerance, rtol=0)
    pair.step.close()


@needs_avx2
@pytest.mark.parametrize(
    ("piece", "rows", "said"),
    [
        (Piece([VOCABULARY], 0, [0]), None, "a token does not exist"),
        (Piece([-1], 0, [0]), None, "a token does not exist"),
        (Piece([1], 0, [64]), None, "a block does not exist"),
        (Piece([1], 0, [0]), [1], "a row does not exist"),
        (Piece([1], 512, range(33)), None, "a context is longer than 512 tokens"),
    ],
)
def test_what_does_not_exist_is_refused(
    library: Callable[[StepModel, Isa], Path], piece: Piece, rows: list[int] | None, said: str
) -> None:
    pair = Pair(tiny(), library, Isa.AVX2)
    with pytest.raises(ValueError, match=said):
        pair.computed([piece], rows)
    pair.step.close()
