"""Rotary position embedding of the pairs (i, i + R/2), for every scaling: angles are given."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.triton_kernels.launch import Launch


@triton.jit(do_not_specialize=["heads"])
def rotary_kernel(
    x,
    cos,
    sin,
    out,
    heads,
    token_stride,
    head_stride,
    size,
    half,
    tile_heads: tl.constexpr,
    tile_half: tl.constexpr,
    tile_rest: tl.constexpr,
):
    """One token, some of its heads. tile_half ≥ half; tile_rest ≥ size - 2 half, 0 for no rest."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)).to(tl.int64)
    pair = tl.arange(0, tile_half)
    cosine = tl.load(cos + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    sine = tl.load(sin + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    source = x + token * token_stride + head[:, None] * head_stride
    target = out + (token * heads + head[:, None]) * size
    mask = (head < heads)[:, None] & (pair < half)[None, :]
    first = tl.load(source + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + half + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(target + pair[None, :], (first * cosine - second * sine).to(dtype), mask=mask)
    tl.store(target + half + pair[None, :], (second * cosine + first * sine).to(dtype), mask=mask)
    if tile_rest > 0:
        column = 2 * half + tl.arange(0, tile_rest)
        mask = (head < heads)[:, None] & (column < size)[None, :]
        rest = tl.load(source + column[None, :], mask=mask)
        tl.store(target + column[None, :], rest, mask=mask)


def rotary_blocks(heads: int, size: int, half: int) -> tuple[int, int, int]:
    """tile_heads, tile_half and tile_rest of a launch: about two thousand elements a program."""
    block = triton.next_power_of_2(half)
    rest = triton.next_power_of_2(size - 2 * half) if size > 2 * half else 0
    return min(triton.next_power_of_2(heads), max(1, 1024 // block)), block, rest


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As the twin; x [T, heads, D] may be strided in all but its last dimension."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        rotary_launch(x, cos, sin, out).run()
    return out


def rotary_launch(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Launch:
    """Of x into out [T, heads, D]."""
    num_tokens, heads, size = x.shape
    if x.stride(-1) != 1:
        x = x.contiguous()
    half = cos.shape[-1]
    per_program, block, rest = rotary_blocks(heads, size, half)
    arguments = {
        "x": x,
        "cos": cos.contiguous(),
        "sin": sin.contiguous(),
        "out": out,
        "heads": heads,
        "token_stride": x.stride(0),
        "head_stride": x.stride(1),
        "size": size,
        "half": half,
        "tile_heads": per_program,
        "tile_half": block,
        "tile_rest": rest,
    }
    return Launch(rotary_kernel, (num_tokens, triton.cdiv(heads, per_program)), arguments)
