"""What a step leaves in its memory, or does not get of it, hurts no later one."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from step_models import MODELS
from step_pair import Pair, Piece, compiled_into, tiny

from fastgen_kernels.cpu_step.description import StepModel
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_runtime.engine.cores import cpu_flags
from fastgen_runtime.sources.model import cache_directory

Library = Callable[[StepModel, Isa], Path]
SMALL = [Piece(range(1, 40), 0, range(3))]
SPOILT = [Piece([0] * 39, 0, range(3, 6))]
TOO_LARGE = [Piece([1] * 512, 0, range(32))] * 1024
"""The first of its buffers takes 128 MiB, all that is made before it a sixth of that."""
ROOM_BYTES = 64 << 20

needs_avx2 = pytest.mark.skipif(isa_of(cpu_flags()) is None, reason="this CPU has no AVX2")


@pytest.fixture(scope="module")
def library() -> Library:
    return compiled_into(cache_directory() / "cpu-step-tests")


def allow_more_bytes(count: int) -> None:
    """Of this process's addresses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + count,) * 2)


@needs_avx2
def test_a_step_that_was_too_large(library: Library) -> None:
    """In a process of its own, which the limit ends with."""
    pair = Pair(tiny(), library, Isa.AVX2)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            expected = pair.computed(SMALL)
            allow_more_bytes(ROOM_BYTES)
            with pytest.raises(MemoryError, match="no memory for a step of 524288 tokens"):
                pair.computed(TOO_LARGE, [0])
            os._exit(0 if torch.equal(pair.computed(SMALL), expected) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pair.step.close()


@pytest.fixture(params=[name for name, made in MODELS.items() if made[0].hidden_size % 2])
def odd(request: pytest.FixtureRequest, library: Library) -> Iterator[Pair]:
    """Of an odd number of inputs, of which products take pairs: the last with what is behind it.

    Token 0 is no number.
    """
    config, block_size, int8_group = MODELS[request.param]
    config = replace(config, tied_embeddings=False)
    pair = Pair(config, library, Isa.AVX2, block_size, int8_group=int8_group)
    assert pair.step_weights.embedding is not None
    pair.step_weights.embedding[0] = torch.nan
    yield pair
    pair.step.close()


@needs_avx2
def test_rows_that_were_no_numbers(odd: Pair) -> None:
    expected = odd.computed(SMALL)
    assert expected.isfinite().all()
    assert odd.computed(SPOILT).isnan().all()
    assert torch.equal(odd.computed(SMALL), expected)


@needs_avx2
def test_logits_after_rows_that_were_no_numbers(odd: Pair) -> None:
    hidden = odd.computed(SMALL)
    expected = odd.step.lm_head(hidden)
    assert expected.isfinite().all()
    assert odd.computed(SPOILT).isnan().all()
    assert torch.equal(odd.step.lm_head(hidden), expected)
