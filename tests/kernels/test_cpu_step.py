"""The compiled step computes what the torch twin computes, however a batch is cut."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from step_batches import LENGTH, by_request, random_steps, shuffled_blocks, whole
from step_models import MODELS
from step_pair import (
    VOCABULARY,
    Drawing,
    Pair,
    Piece,
    compiled_into,
    draw_weights,
    step_model,
    tiny,
)

from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_kernels.cpu_step.weights import Packer
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.sources.model import cache_directory

needs_avx2 = pytest.mark.skipif(isa_of(cpu_flags()) is None, reason="this CPU has no AVX2")


@pytest.fixture(scope="module")
def library() -> Callable[[StepModel, Isa], Path]:
    """Kept from session to session: a library's name tells all that it is made of."""
    return compiled_into(cache_directory() / "cpu-step-tests")


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, library: Callable[[StepModel, Isa], Path]
) -> Iterator[Pair]:
    config, block_size, int8_group = MODELS[request.param]
    pair = Pair(config, library, Isa.AVX2, block_size, int8_group=int8_group)
    yield pair
    pair.step.close()


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
@pytest.mark.parametrize("seed", [1, 2])
def test_which_rows_are_wanted_changes_no_bit(pair: Pair, seed: int) -> None:
    """Several of a chunk or none, in any order, one of them twice."""
    rng = random.Random(seed)
    for pieces in random_steps(seed, shuffled_blocks(pair, seed)):
        every = pair.computed(pieces)
        rows = rng.choices(range(len(every)), k=rng.randint(0, 6))
        assert torch.equal(pair.computed(pieces, rows), every[rows])


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
    ("isa", "cache", "int8_group", "tolerance"),
    [
        pytest.param(Isa.AVX2, Element.FP32, None, 1e-4, marks=needs_avx2),
        pytest.param(Isa.AVX2, Element.BF16, None, 0.05, marks=needs_avx2),
        pytest.param(Isa.AVX2, Element.FP32, 32, 1e-4, marks=needs_avx2),
        (Isa.PORTABLE, Element.BF16, None, 0.1),
        (Isa.PORTABLE, Element.BF16, 32, 0.1),
    ],
)
def test_weights_in_bfloat16(
    library: Callable[[StepModel, Isa], Path],
    isa: Isa,
    cache: Element,
    int8_group: int | None,
    tolerance: float,
) -> None:
    """Exact where only weights are rounded, as the twin's are; else within bfloat16's rounding."""
    pair = Pair(tiny(), library, isa, weights=Element.BF16, cache=cache, int8_group=int8_group)
    for pieces in random_steps(1, shuffled_blocks(pair, 1)):
        expected = pair.expected(pieces)
        torch.testing.assert_close(pair.computed(pieces), expected, atol=tolerance, rtol=0)
    pair.step.close()


@pytest.mark.parametrize(
    ("form", "group"), [(WeightFormat.INT8, 64), (WeightFormat.INT8, None), (WeightFormat.FP8, 32)]
)
def test_weights_that_the_step_was_not_compiled_for_are_refused(
    form: WeightFormat, group: int | None
) -> None:
    packer = Packer(step_model(tiny(), 16, Element.BF16, Element.BF16, int8_group=32))
    with pytest.raises(ValueError, match="compiled for int8 in groups of 32"):
        packer.quantized(quantize(torch.ones(4, 128), form, group), None)


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_output_layer_of_int8_has_an_embedding_beside_it(is_tied: bool) -> None:
    """Which is not rounded; in one of the dtype the embedding's rows are found."""
    config = tiny(tied_embeddings=is_tied)
    for group, is_shared in ((None, is_tied), (32, False)):
        model = step_model(config, 16, Element.FP32, Element.FP32, int8_group=group)
        twin, step = draw_weights(config, Drawing(1, model))
        assert step.lm_head.weights.dtype == (torch.int8 if group else torch.float32)
        assert (step.embedding is None) == is_shared
        assert is_shared or step.embedding is twin.embedding
    with pytest.raises(ValueError, match="holds no embedding"):
        replace(step, embedding=None)


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
