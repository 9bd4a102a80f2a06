"""Writes keys and values to their slots in the paged cache."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_slots"])
def kv_write_rows(
    keys,
    values,
    cached_keys,
    cached_values,
    slots,
    key_stride,
    value_stride,
    slot_stride,
    num_slots,
    key_scale,
    value_scale,
    largest,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    """One token: its keys and values of all heads, `width` numbers each, divided by their scales.

    slots: [T] int64; nothing is written for one that is not in 0 … num_slots - 1. largest: of the
    cache's type; where that is not the keys', numbers beyond it become it. NaN stays NaN. Grid:
    (T, ⌈width / tile⌉).
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    there = (at < width) & (slot >= 0) & (slot < num_slots)
    key = tl.load(keys + token * key_stride + at, mask=there, other=0.0)
    value = tl.load(values + token * value_stride + at, mask=there, other=0.0)
    kept = cached_keys.dtype.element_ty
    if kept != key.dtype:
        key = key.to(tl.float32) * (1.0 / key_scale)
        value = value.to(tl.float32) * (1.0 / value_scale)
        key = tl.clamp(key, -largest, largest, propagate_nan=tl.PropagateNan.ALL)
        value = tl.clamp(value, -largest, largest, propagate_nan=tl.PropagateNan.ALL)
    tl.store(cached_keys + slot * slot_stride + at, key.to(kept), mask=there)
    tl.store(cached_values + slot * slot_stride + at, value.to(kept), mask=there)
