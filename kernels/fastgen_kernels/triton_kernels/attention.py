"""Attention of a ragged batch over a paged cache: decodes and prompts, a launch each."""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fastgen_kernels.gpu_limits import check
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins.kv_cache import check_scales
from fastgen_kernels.triton_kernels.attention_plan import (
    AttentionPlan,
    StaticDecodePlan,
    make_plan,
)
from fastgen_kernels.triton_kernels.decode_kernel import decode, merge
from fastgen_kernels.triton_kernels.launch import Launch, check_heads_together
from fastgen_kernels.triton_kernels.prefill_kernel import prefill
from fastgen_kernels.triton_kernels.tiling import Gpu, decode_tiling, padded

_LOG2_E: Final = math.log2(math.e)
_MERGED: Final = 16
"""Partial results that a merge takes at a time."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What the numbers of an fp8 cache are multiplied with to be keys and values."""

    key: float = 1.0
    value: float = 1.0


def plan_attention(
    batch: RaggedBatch,
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
) -> AttentionPlan:
    """For a CUDA device; see the twin. Raises ValueError for sizes that no kernel is made for."""
    check(heads, batch.block_size, dtype)
    return make_plan(batch, heads, device, gpu_of(device), window)


def gpu_of(device: torch.device) -> Gpu:
    """What the plan and the kernels' tiles depend on."""
    told = torch.cuda.get_device_properties(device)
    return Gpu(10 * told.major + told.minor, told.multi_processor_count)


def static_plan(
    num_rows: int,
    num_blocks: int,
    heads: Heads,
    block_size: int,
    device: torch.device,
    window: int | None = None,
) -> StaticDecodePlan:
    """For a CUDA device; see `StaticDecodePlan`."""
    return StaticDecodePlan(num_rows, num_blocks, heads, block_size, device, gpu_of(device), window)


def attention(
    query: Tensor,
    cache: Tensor,
    plan: AttentionPlan,
    scale: float | None = None,
    soft_cap: float | None = None,
    scales: Scales = Scales(),
) -> Tensor:
    """See the twin. scales: of a cache of float8_e4m3fn."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in launches(query, cache, plan, out, scale, soft_cap, scales):
        launch.run()
    return out.flatten(1)


def launches(
    query: Tensor,
    cache: Tensor,
    plan: AttentionPlan,
    out: Tensor,
    scale: float | None = None,
    soft_cap: float | None = None,
    scales: Scales = Scales(),
) -> list[Launch]:
    """What `attention` runs, in order; together they write all of `out` [T, heads, D]."""
    found = []
    shared = _shared(query, cache, plan, out, scale, soft_cap, scales)
    if len(plan.items):
        group = plan.heads.group
        slots = max(1, plan.num_slots)
        partial = torch.empty((slots, group, plan.heads.size), device=query.device)
        partial_lse = torch.empty((slots, group), device=query.device)
        found.append(_decode(shared, plan, partial, partial_lse))
        if len(plan.merges):
            found.append(_merge(plan, partial, partial_lse, out))
    if len(plan.tiles):
        found.append(_prefill(shared, plan))
    return found


def _shared(
    query: Tensor,
    cache: Tensor,
    plan: AttentionPlan,
    out: Tensor,
    scale: float | None,
    soft_cap: float | None,
    scales: Scales,
) -> dict[str, Any]:
    """Arguments of both kernels. Raises ValueError for strides that they cannot read, for tensors
    that the plan is not of, and for scales of a cache that has none."""
    heads = plan.heads
    _check_sizes(query, cache, heads)
    check_scales(cache.dtype, scales.key, scales.value)
    for name, tensor in (("query", query), ("cache", cache[0]), ("out", out)):
        check_heads_together(name, tensor)
    scale = (heads.size**-0.5 if scale is None else scale) * scales.key
    keys, values = cache.unbind()
    return {
        "query": query,
        "keys": keys,
        "values": values,
        "out": out,
        "tables": plan.tables,
        "query_stride": query.stride(0),
        "out_stride": out.stride(0),
        "slot_stride": keys.stride(0),
        "table_stride": plan.tables.stride(0),
        "group": heads.group,
        # Capped scores are scaled by the cap's own log2(e).
        "scale": scale * _LOG2_E if soft_cap is None else scale / soft_cap,
        "soft_cap": 0.0 if soft_cap is None else soft_cap * _LOG2_E,
        "value_scale": scales.value,
        "size": heads.size,
        "tile_size": padded(heads.size),
        "block_bits": plan.block_size.bit_length() - 1,
        "capped": soft_cap is not None,
    }


def _check_sizes(query: Tensor, cache: Tensor, heads: Heads) -> None:
    """Raises ValueError where the kernels, which go by the plan's heads, would read elsewhere."""
    if query.shape[1:] != (heads.num_query, heads.size):
        raise ValueError(f"query: heads of {tuple(query.shape[1:])} for a plan of {heads}")
    if cache.shape[2:] != (heads.num_kv, heads.size):
        raise ValueError(f"cache: heads of {tuple(cache.shape[2:])} for a plan of {heads}")


def _decode(
    shared: dict[str, Any], plan: AttentionPlan, partial: Tensor, partial_lse: Tensor
) -> Launch:
    tiling = decode_tiling(plan.heads)
    arguments = shared | {
        "partial": partial,
        "partial_lse": partial_lse,
        "items": plan.items,
        "bounds": plan.bounds,
        "tile_rows": tiling.rows,
        "tile_keys": tiling.keys,
        "whole_tiles": tiling.keys <= plan.block_size,
    }
    return Launch(decode, (len(plan.bounds) - 1,), arguments, tiling.warps, tiling.stages)


def _merge(plan: AttentionPlan, partial: Tensor, partial_lse: Tensor, out: Tensor) -> Launch:
    arguments = {
        "partial": partial,
        "partial_lse": partial_lse,
        "merges": plan.merges,
        "out": out,
        "out_stride": out.stride(0),
        "group": plan.heads.group,
        "size": plan.heads.size,
        "tile_size": padded(plan.heads.size),
        "tile_parts": _MERGED,
    }
    return Launch(merge, (len(plan.merges), plan.heads.group), arguments, 4, 2)


def _prefill(shared: dict[str, Any], plan: AttentionPlan) -> Launch:
    tiling = plan.prefill_tiling
    arguments = shared | {
        "tiles": plan.tiles,
        "window": plan.window or 0,
        "windowed": plan.window is not None,
        "tile_rows": tiling.rows,
        "tile_keys": tiling.keys,
        "whole_tiles": tiling.keys <= plan.block_size,
    }
    grid = (len(plan.tiles), plan.heads.num_kv)
    return Launch(prefill, grid, arguments, tiling.warps, tiling.stages)
