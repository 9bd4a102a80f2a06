"""Rows far apart, the last more than 2^31 elements after the first: places take 64 bits.

SGLang's issue 20389, vLLM's 47671, 50427, 5938 and 34086, Liger's 1296. The memory in between is
never touched, so that it takes none. A wrong address ends the process that reads it, which is why
it is another process than this.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton_interpreter  # noqa: F401 - in the other process, before anything imports Triton
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_kernels.triton_kernels.activation import gate
from fastgen_kernels.triton_kernels.attention import launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.experts import StackedExperts, experts
from fastgen_kernels.triton_kernels.kv_cache import kv_write
from fastgen_kernels.triton_kernels.norm import add_rms_norm, rms_norm
from fastgen_kernels.triton_kernels.quantized import linear_launches
from fastgen_kernels.triton_kernels.rotary import rotary
from fastgen_kernels.triton_kernels.route import route
from fastgen_kernels.triton_kernels.sampling import sample
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_kernels.triton_kernels.token_logprobs import logprobs

APART = 2**30 + 64
"""Elements from row to row: a number of 32 bits, of which two rows' is none."""
HALF = torch.float16


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).half()


def apart(near: Tensor) -> Tensor:
    """The same with APART elements from row to row."""
    row = near[0].numel()
    storage = torch.empty((len(near) - 1) * APART + row, dtype=near.dtype)
    far = storage.as_strided(near.shape, (APART, *near.stride()[1:]))
    return far.copy_(near)


def attentions() -> None:
    """Queries and results: of decodes, split and whole, and of a prompt."""
    heads, cache = Heads(2, 1, 16), random(2, 320, 1, 16)
    for starts, lengths in (([0, 299], [2, 1]), ([299, 3], [1, 2]), ([9, 7, 299], [1, 1, 1])):
        batch = RaggedBatch.of(starts, lengths, [range(19)] * len(starts), 16)
        plan = make_plan(batch, heads, torch.device("cpu"), Gpu(90, 3))
        query, results = random(3, 2, 16), [torch.zeros(3, 2, 16, dtype=HALF) for _ in range(2)]
        results[1] = apart(results[1])
        for x, out in zip((query, apart(query)), results, strict=True):
            for launch in launches(x, cache, plan, out):
                launch.run()
        assert torch.equal(*results)
        assert results[0].all()


def writes() -> None:
    """To the cache, of keys and values; the cache's own places are in test_triton_kv_cache."""
    near, slots = random(3, 2, 16), torch.tensor([5, 0, 3])
    caches = torch.zeros(2, 2, 6, 2, 16, dtype=HALF)
    kv_write(near, near, caches[0], slots)
    kv_write(apart(near), apart(near), caches[1], slots)
    assert torch.equal(*caches)


def norms() -> None:
    near, weight = random(3, 64), torch.ones(64, dtype=HALF)
    assert torch.equal(rms_norm(apart(near), weight, 1e-5), rms_norm(near, weight, 1e-5))
    residuals = random(3, 64, seed=1), random(3, 64, seed=1)
    add_rms_norm(apart(near), residuals[0], weight, 1e-5)
    add_rms_norm(near, residuals[1], weight, 1e-5)
    assert torch.equal(*residuals)


def rotaries() -> None:
    near, angles = random(3, 3, 64), random(3, 1, 24)
    cos, sin = angles.cos(), angles.sin()
    assert torch.equal(rotary(apart(near), cos, sin), rotary(near, cos, sin))


def gates() -> None:
    near = random(3, 64)
    assert torch.equal(gate(apart(near), Activation.SILU), gate(near, Activation.SILU))


def routes() -> None:
    near = random(3, 8)
    assert all(map(torch.equal, route(apart(near), 2, True), route(near, 2, True)))


def mixtures() -> None:
    """Of tokens, and of an expert with a high number."""
    near, gate_up, down = random(3, 32), random(3, 48, 32) / 6, random(3, 32, 24) / 6
    weights, indices = torch.ones(3, 1), torch.tensor([[2], [1], [2]])
    expected = experts(near, weights, indices, StackedExperts(gate_up, down))
    far = StackedExperts(apart(gate_up), apart(down))
    assert torch.equal(experts(near, weights, indices, far), expected)
    assert torch.equal(experts(apart(near), weights, indices, far), expected)


def linears() -> None:
    near, weight = random(3, 64), quantize(random(40, 64), WeightFormat.INT8, 32)
    results = [torch.empty(3, 40, dtype=HALF) for _ in range(2)]
    for x, out in zip((near, apart(near)), results, strict=True):
        for launch in linear_launches(x, weight, None, out, 1):
            launch.run()
    assert torch.equal(*results)


def tokens() -> None:
    near = random(3, 300)
    draws = [Draw(0.0), Draw(1.0), Draw(1.0, top_k=20, top_p=0.8, seed=3)]
    assert sample(apart(near), draws) == sample(near, draws)
    assert logprobs(apart(near), [4, 5, 6], 3) == logprobs(near, [4, 5, 6], 3)


KERNELS = {
    function.__name__: function
    for function in (attentions, writes, norms, rotaries, gates, routes, mixtures, linears, tokens)
}


def main() -> None:
    for name, check in KERNELS.items():
        check()
        print(name, flush=True)


@pytest.fixture(scope="module")
def passed() -> set[str]:
    path = [*sys.path, str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", f"import {Path(__file__).stem}; {Path(__file__).stem}.main()"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    sys.stderr.write(done.stderr[-2000:])
    return set(done.stdout.split())


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_far_apart(kernel: str, passed: set[str]) -> None:
    assert kernel in passed
