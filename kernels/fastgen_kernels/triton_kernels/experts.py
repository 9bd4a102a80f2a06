"""Mixture of experts: one launch for all experts, whatever they got, without waiting for the
device.

A program finds its expert and its tokens from the counts on the device; the grid is as large as the
worst split of the tokens makes it, and programs beyond what there is end at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.triton_kernels.activation import activated
from fastgen_kernels.triton_kernels.launch import Launch

GROUP_BLOCK: Final = 1024
COMBINE_BLOCK: Final = 1024


@triton.jit(do_not_specialize=["num_pairs", "num_experts"])
def group_kernel(indices, order, starts, num_pairs, num_experts, tile: tl.constexpr):
    """Sorts pairs of token and expert by expert, stably; a program for each expert.

    order: [pairs] which pair is where; starts: [experts + 1] first place of each expert's pairs.
    """
    expert = tl.program_id(0)
    smaller = tl.zeros([tile], tl.int32)
    for start in range(0, num_pairs, tile):
        pair = start + tl.arange(0, tile)
        chosen = tl.load(indices + pair, mask=pair < num_pairs, other=num_experts)
        smaller += (chosen < expert).to(tl.int32)
    place = tl.sum(smaller, 0)
    tl.store(starts + expert, place)
    if expert == num_experts - 1:
        tl.store(starts + num_experts, num_pairs)
    for start in range(0, num_pairs, tile):
        pair = start + tl.arange(0, tile)
        chosen = tl.load(indices + pair, mask=pair < num_pairs, other=num_experts)
        ours = (chosen == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(ours, 0) - 1, pair, mask=ours != 0)
        place += tl.sum(ours, 0)


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def expert_kernel(
    x,
    weights,
    out,
    order,
    starts,
    num_experts,
    inputs,
    outputs,
    top_k,
    x_stride,
    expert_stride,
    gated: tl.constexpr,
    activation: tl.constexpr,
    tile_experts: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """A tile of one expert's outputs.

    gated: x [T, inputs] by token into activation(gate) · up at the pairs' places, gates first in
    weights [experts, 2 outputs, inputs]. Else x by place into out by pair.
    """
    block = tl.program_id(1)
    each = tl.arange(0, tile_experts)
    begins = tl.load(starts + each, mask=each < num_experts, other=0)
    ends = tl.load(starts + each + 1, mask=each < num_experts, other=0)
    blocks = (ends - begins + block_m - 1) // block_m
    expert = tl.sum((tl.cumsum(blocks, 0) <= block).to(tl.int32), 0)
    if expert < num_experts:
        block -= tl.sum(tl.where(each < expert, blocks, 0), 0)
        place = tl.load(starts + expert) + block * block_m + tl.arange(0, block_m)
        filled = place < tl.load(starts + expert + 1)
        pair = tl.load(order + place, mask=filled, other=0)
        source = (pair // top_k if gated else place).to(tl.int64)
        target = (place if gated else pair).to(tl.int64)
        column = tl.program_id(0) * block_n + tl.arange(0, block_n)
        wanted = column < outputs
        matrix = weights + expert.to(tl.int64) * expert_stride
        rows = x + source[:, None] * x_stride
        columns = matrix + column.to(tl.int64)[:, None] * inputs
        total = tl.zeros([block_m, block_n], tl.float32)
        ups = tl.zeros([block_m, block_n], tl.float32)
        for start in range(0, inputs, block_k):
            k = start + tl.arange(0, block_k)
            a = tl.load(rows + k[None, :], mask=filled[:, None] & (k < inputs)[None, :], other=0.0)
            mask = wanted[:, None] & (k < inputs)[None, :]
            b = tl.load(columns + k[None, :], mask=mask, other=0.0)
            total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
            if gated:
                above = outputs.to(tl.int64) * inputs
                b = tl.load(columns + above + k[None, :], mask=mask, other=0.0)
                ups = tl.dot(a, tl.trans(b), ups, input_precision="ieee")
        dtype = out.dtype.element_ty
        if gated:  # rounded where the twin rounds
            gates = activated(total.to(dtype).to(tl.float32), activation)
            total = gates.to(dtype).to(tl.float32) * ups.to(dtype).to(tl.float32)
        mask = filled[:, None] & wanted[None, :]
        tl.store(out + target[:, None] * outputs + column[None, :], total.to(dtype), mask=mask)


@triton.jit
def combine_kernel(outputs, weights, out, size, top_k: tl.constexpr, tile: tl.constexpr):
    """A token's weighted sum over its pairs, in float32 and in their order."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    total = tl.zeros([tile], tl.float32)
    for number in tl.static_range(top_k):
        pair = token * top_k + number
        value = tl.load(outputs + pair * size + column, mask=column < size, other=0.0)
        total += tl.load(weights + pair) * value.to(tl.float32)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=column < size)


@dataclass(frozen=True, slots=True, eq=False)
class StackedExperts:
    """gate_up: [experts, 2 I, H], gates first; down: [experts, H, I]."""

    gate_up: Tensor
    down: Tensor


def pack_experts(weights: Iterable[tuple[Tensor, Tensor]]) -> StackedExperts:
    """As the twin."""
    gate_ups, downs = zip(*weights, strict=True)
    return StackedExperts(torch.stack(gate_ups), torch.stack(downs))


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """m: pairs, n: outputs, k: inputs of a tile."""

    m: int
    n: int
    k: int
    num_warps: int
    num_stages: int


def expert_tiles(num_pairs: int, num_experts: int, item_bytes: int) -> ExpertTiles:
    """By how many pairs an expert gets on average; a few are bound by the reading of weights."""
    average = num_pairs / num_experts
    k = 128 // item_bytes
    if average <= 16:
        return ExpertTiles(16, 64, k, 4, 4)
    if average <= 128:
        return ExpertTiles(64, 64, k, 4, 3)
    return ExpertTiles(128, 64, k, 8, 3)


def experts(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    experts: StackedExperts,
    activation: Activation = Activation.SILU,
) -> Tensor:
    """As the twin."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        for launch in expert_launches(x, weights, indices, experts, activation, out):
            launch.run()
    return out


def expert_launches(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    experts: StackedExperts,
    activation: Activation,
    out: Tensor,
) -> list[Launch]:
    """Grouping, both layers and the sum, for x [T, H] into out; weights, indices: [T, k]."""
    num_pairs, top_k = indices.numel(), indices.shape[1]
    num_experts, hidden, inner = experts.down.shape
    order = torch.empty(num_pairs, dtype=torch.int32, device=x.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=x.device)
    between = torch.empty((num_pairs, inner), dtype=x.dtype, device=x.device)
    outputs = torch.empty((num_pairs, hidden), dtype=x.dtype, device=x.device)
    if x.stride(-1) != 1:
        x = x.contiguous()
    grouping = {
        "indices": indices.contiguous(),
        "order": order,
        "starts": starts,
        "num_pairs": num_pairs,
        "num_experts": num_experts,
        "tile": GROUP_BLOCK,
    }
    shared = {
        "order": order,
        "starts": starts,
        "num_experts": num_experts,
        "top_k": top_k,
        "activation": activation.value,
    }
    combining = {
        "outputs": outputs,
        "weights": weights.contiguous(),
        "out": out,
        "size": hidden,
        "top_k": top_k,
        "tile": COMBINE_BLOCK,
    }
    return [
        Launch(group_kernel, (num_experts,), grouping, 4),
        _layer(shared, x, experts.gate_up, between, num_pairs, gated=True),
        _layer(shared, between, experts.down, outputs, num_pairs, gated=False),
        Launch(combine_kernel, (len(x), triton.cdiv(hidden, COMBINE_BLOCK)), combining, 4),
    ]


def _layer(
    shared: Mapping[str, Any],
    x: Tensor,
    matrices: Tensor,
    out: Tensor,
    num_pairs: int,
    *,
    gated: bool,
) -> Launch:
    """One of the two layers; the grid is as large as any split of the pairs among experts needs."""
    num_experts, outputs = len(matrices), out.shape[1]
    tiles = expert_tiles(num_pairs, num_experts, x.element_size())
    arguments = {
        **shared,
        "tile_experts": triton.next_power_of_2(num_experts),
        "block_m": tiles.m,
        "block_n": tiles.n,
        "block_k": tiles.k,
        "x": x,
        "weights": matrices,
        "out": out,
        "inputs": x.shape[1],
        "outputs": outputs,
        "x_stride": x.stride(0),
        "expert_stride": matrices.stride(0),
        "gated": gated,
    }
    most_blocks = min(num_pairs, num_pairs // tiles.m + num_experts)
    grid = (triton.cdiv(outputs, tiles.n), most_blocks)
    return Launch(expert_kernel, grid, arguments, tiles.num_warps, tiles.num_stages)
