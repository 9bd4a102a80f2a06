"""The interpreter that tests run kernels with computes as a GPU does."""

import os
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.launch import Launch


@triton.jit
def _arithmetic(x, y, total, product, less, size: tl.constexpr):
    at = tl.arange(0, size)
    left, right = tl.load(x + at), tl.load(y + at)
    tl.store(total + at, left + right)
    tl.store(product + at, left * right)
    tl.store(less + at, (left < right).to(tl.int32))


@triton.jit
def _rounded(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16))


@triton.jit
def _float8(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at).to(tl.float8e4nv))


@triton.jit
def _matrices(x, y, out, size: tl.constexpr):
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


@triton.jit
def _counted(bounds, out):
    for number in range(tl.load(bounds), tl.load(bounds + 1)):
        tl.store(out + number, number)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_bfloat16_is_arithmetic_of_values() -> None:
    x, y = random(256, seed=1).bfloat16(), random(256, seed=2).bfloat16()
    total, product = torch.empty_like(x), torch.empty_like(x)
    less = torch.empty(256, dtype=torch.int32)
    arguments = {"x": x, "y": y, "total": total, "product": product, "less": less, "size": 256}
    Launch(_arithmetic, (1,), arguments).run()
    assert torch.equal(total, x + y)
    assert torch.equal(product, x * y)
    assert torch.equal(less.bool(), x < y)


def test_float32_is_rounded_to_the_nearest_bfloat16() -> None:
    x = random(1024, seed=3)
    x[:4] = torch.tensor([1.9999, torch.nan, torch.inf, -torch.inf])
    out = torch.empty(1024, dtype=torch.bfloat16)
    Launch(_rounded, (1,), {"x": x, "out": out, "size": 1024}).run()
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_matrices(dtype: torch.dtype) -> None:
    x, y = random(32, 32, seed=4).to(dtype), random(32, 32, seed=5).to(dtype)
    out = torch.empty(32, 32)
    Launch(_matrices, (1,), {"x": x, "y": y, "out": out, "size": 32}).run()
    torch.testing.assert_close(out.double(), x.double() @ y.double(), atol=1e-5, rtol=0)


def test_numbers_become_the_nearest_float8() -> None:
    x = random(1024, seed=6) * 100
    x[:4] = torch.tensor([torch.nan, 1e6, -1e6, 1e-9])
    out = torch.empty(1024, dtype=torch.float8_e4m3fn)
    Launch(_float8, (1,), {"x": x, "out": out, "size": 1024}).run()
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0, equal_nan=True)


def test_loops_have_loaded_bounds() -> None:
    bounds, out = torch.tensor([2, 5], dtype=torch.int32), torch.full((8,), -1, dtype=torch.int32)
    Launch(_counted, (1,), {"bounds": bounds, "out": out}).run()
    assert out.tolist() == [-1, -1, 2, 3, 4, -1, -1, -1]


def test_an_empty_grid_runs_nothing() -> None:
    Launch(_counted, (0,), {}).run()


def test_processes_that_tests_start_do_not_interpret() -> None:
    assert "TRITON_INTERPRET" not in os.environ
    code = "import triton; print(triton.knobs.runtime.interpret)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
