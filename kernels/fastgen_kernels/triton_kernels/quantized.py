"""Linear layers with weights of 8 bits: they are widened in registers, never in memory.

Few tokens are bound by the reading of weights, which are half as many bytes; their inputs are split
among several programs where the outputs alone would leave the device idle.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.torch_twins.linear import Linear
from fastgen_kernels.torch_twins.quantized import QuantizedWeight
from fastgen_kernels.triton_kernels.launch import Launch

SUM_BLOCK: Final = 1024
MOST_SPLITS: Final = 8
FP8_LEAST: Final = (8, 9)
"""Compute capability: Ada and Hopper are the first with conversions of fp8."""


@triton.jit(do_not_specialize=["num_tokens", "groups"])
def linear_kernel(
    x,
    values,
    scales,
    bias,
    out,
    num_tokens,
    inputs,
    outputs,
    x_stride,
    groups,
    split,
    group: tl.constexpr,
    has_bias: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """Tile of x values^T, of `split` inputs: out [splits, tokens, outputs].

    group: inputs of a scale, a multiple of block_k; 0: all. split: a multiple of block_k.
    """
    column = tl.program_id(0) * block_n + tl.arange(0, block_n)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    part = tl.program_id(2)
    wanted, filled = column < outputs, row < num_tokens
    rows = x + row.to(tl.int64)[:, None] * x_stride
    columns = values + column.to(tl.int64)[:, None] * inputs
    step = tl.arange(0, block_k)
    total = tl.zeros([block_m, block_n], tl.float32)
    first = part * split
    for start in range(first, tl.minimum(first + split, inputs), block_k):
        k = start + step
        a = tl.load(rows + k[None, :], mask=filled[:, None] & (k < inputs)[None, :], other=0.0)
        b = tl.load(columns + k[None, :], mask=wanted[:, None] & (k < inputs)[None, :], other=0.0)
        b = tl.trans(b.to(a.dtype))
        if group > 0:
            place = scales + column.to(tl.int64) * groups + start // group
            scale = tl.load(place, mask=wanted, other=0.0)
            total += tl.dot(a, b, input_precision="ieee") * scale[None, :]
        else:
            total = tl.dot(a, b, total, input_precision="ieee")
    if group == 0:
        total *= tl.load(scales + column, mask=wanted, other=0.0)[None, :]
    if has_bias:
        total += tl.load(bias + column, mask=wanted, other=0.0).to(tl.float32)[None, :]
    target = (part.to(tl.int64) * num_tokens + row)[:, None] * outputs + column[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=filled[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["num_tokens", "splits"])
def sum_kernel(
    parts, bias, out, num_tokens, outputs, splits, has_bias: tl.constexpr, block: tl.constexpr
):
    """out [tokens, outputs] of parts [splits, tokens, outputs], added up in order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < outputs
    total = tl.zeros([block], tl.float32)
    for number in range(splits):
        place = (tl.cast(number, tl.int64) * num_tokens + row) * outputs
        total += tl.load(parts + place + column, mask=mask, other=0.0)
    if has_bias:
        total += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + column, total.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class LinearTiles:
    """m: tokens, n: outputs, k: inputs of a tile. split: inputs that one program adds up."""

    m: int
    n: int
    k: int
    split: int
    num_warps: int
    num_stages: int


def linear_tiles(
    num_tokens: int, inputs: int, outputs: int, group: int | None, item_bytes: int, num_sms: int
) -> LinearTiles:
    """A tile's inputs share their scale; splits are equal and none is empty.

    item_bytes: of an element of x. num_sms: multiprocessors of the device.
    """
    k = min(group or 128, 128 // item_bytes)
    if num_tokens > 16:
        m, n, warps = (64, 64, 4) if num_tokens <= 64 else (128, 64, 8)
        whole = max(k, triton.cdiv(inputs, k) * k)
        return LinearTiles(m, n, k, whole, warps, 3)
    tiles = triton.cdiv(outputs, 64)
    steps = max(1, triton.cdiv(inputs, k))
    splits = min(MOST_SPLITS, steps, max(1, 2 * num_sms // tiles))
    return LinearTiles(16, 64, k, triton.cdiv(steps, splits) * k, 4, 5)


def pack_quantized(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """As the twin. Raises ValueError for fp8 on a device that cannot convert it."""
    check_format(weight.values.dtype, _capability(weight.values.device))
    num_sms = _num_sms(weight.values.device)

    def quantized_linear(x: Tensor) -> Tensor:
        out = torch.empty((len(x), len(weight.values)), dtype=x.dtype, device=x.device)
        if out.numel():
            for launch in linear_launches(x, weight, bias, out, num_sms):
                launch.run()
        return out

    return quantized_linear


def check_format(dtype: torch.dtype, capability: tuple[int, int] | None) -> None:
    """Raises ValueError where weights of this type cannot be computed with.

    capability: a GPU's; None: no GPU.
    """
    if dtype is torch.float8_e4m3fn and capability is not None and capability < FP8_LEAST:
        have, need = (".".join(map(str, version)) for version in (capability, FP8_LEAST))
        raise ValueError(
            f"fp8 weights need a GPU of compute capability {need} or newer, and this one has "
            f"{have}: use int8"
        )


def linear_launches(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor, num_sms: int
) -> list[Launch]:
    """Of x [T, in] into out [T, out]; the sum of the splits, where there are any."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    (num_tokens, inputs), outputs = x.shape, out.shape[1]
    tiles = linear_tiles(num_tokens, inputs, outputs, weight.group, x.element_size(), num_sms)
    splits = max(1, triton.cdiv(inputs, tiles.split))
    parts = out
    if splits > 1:
        parts = torch.empty((splits, num_tokens, outputs), dtype=torch.float32, device=x.device)
    arguments = {
        "x": x,
        "values": weight.values,
        "scales": weight.scales,
        "bias": bias,
        "out": parts,
        "num_tokens": num_tokens,
        "inputs": inputs,
        "outputs": outputs,
        "x_stride": x.stride(0),
        "groups": weight.scales.shape[1],
        "split": tiles.split,
        "group": weight.group or 0,
        "has_bias": bias is not None and splits == 1,
        "block_m": tiles.m,
        "block_n": tiles.n,
        "block_k": tiles.k,
    }
    grid = (triton.cdiv(outputs, tiles.n), triton.cdiv(num_tokens, tiles.m), splits)
    launches = [Launch(linear_kernel, grid, arguments, tiles.num_warps, tiles.num_stages)]
    if splits > 1:
        adding = {
            "parts": parts,
            "bias": bias,
            "out": out,
            "num_tokens": num_tokens,
            "outputs": outputs,
            "splits": splits,
            "has_bias": bias is not None,
            "block": SUM_BLOCK,
        }
        rows = (num_tokens, triton.cdiv(outputs, SUM_BLOCK))
        launches.append(Launch(sum_kernel, rows, adding, 4))
    return launches


def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
