"""Attention of single-token chunks: the items of a work list, and the merge of partial results."""

import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.attention_span import attend_span, nothing


@triton.jit(do_not_specialize=["group", "block_bits", "table_stride"])
def decode(
    query,
    keys,
    values,
    out,
    partial,
    partial_lse,
    items,
    bounds,
    tables,
    query_stride,
    out_stride,
    slot_stride,
    table_stride,
    group,
    block_bits,
    scale,
    soft_cap,
    value_scale,
    size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_size: tl.constexpr,
    tile_keys: tl.constexpr,
    whole_tiles: tl.constexpr,
    capped: tl.constexpr,
):
    """A CTA's items, one after the other; the query heads that share keys are rows of one tile.

    query: [T, heads, size]; keys, values: [slots, kv heads, size]; out: as query. partial: [slots
    of the list, group, size] normalised, partial_lse: [slots of the list, group] log2 of the sum of
    weights, both float32. items, bounds: of `WorkList`.
    """
    heads = tl.arange(0, tile_rows)
    dims = tl.arange(0, tile_size)
    wanted = (heads < group)[:, None] & (dims < size)[None, :]
    cta = tl.program_id(0)
    for number in range(tl.load(bounds + cta), tl.load(bounds + cta + 1)):
        row, table, head, first, last, slot = _item(items, number, tables, table_stride)
        places = (head * group + heads)[:, None] * size + dims[None, :]
        queries = tl.load(query + row * query_stride + places, mask=wanted, other=0.0)
        total, top, weight = nothing(tile_rows, tile_size)
        low = tl.zeros((tile_rows,), tl.int32) + first
        high = tl.zeros((tile_rows,), tl.int32) + last
        total, top, weight = attend_span(
            queries, total, top, weight, keys + head * size, values + head * size, slot_stride,
            table, block_bits, first, last, low, high, scale, soft_cap,
            first // tile_keys * tile_keys, last,
            size, tile_size, tile_keys, whole_tiles, True, capped,
        )  # fmt: skip
        empty = weight == 0.0
        result = total * (value_scale / tl.where(empty, 1.0, weight))[:, None]
        if slot < 0:
            place = out + row * out_stride + places
            tl.store(place, result.to(out.dtype.element_ty), mask=wanted)
        else:
            part = slot.to(tl.int64) * group + heads
            tl.store(partial + part[:, None] * size + dims[None, :], result, mask=wanted)
            lse = tl.where(empty, float("-inf"), top + tl.log2(weight))
            tl.store(partial_lse + part, lse, mask=heads < group)


@triton.jit
def _item(items, number, tables, table_stride):
    """Query row, block table, head, first and last position, slot."""
    item = items + tl.cast(number, tl.int64) * 6
    row = tl.load(item).to(tl.int64)
    table = tables + tl.load(item + 1).to(tl.int64) * table_stride
    head = tl.load(item + 2)
    first = tl.load(item + 3)
    last = tl.load(item + 4)
    slot = tl.load(item + 5)
    return row, table, head, first, last, slot


@triton.jit(do_not_specialize=["group"])
def merge(
    partial,
    partial_lse,
    merges,
    out,
    out_stride,
    group,
    size: tl.constexpr,
    tile_size: tl.constexpr,
    tile_parts: tl.constexpr,
):
    """One query head of a split row: the partial results, each by its share of the weights.

    merges: of `WorkList`; a line of no slots is none. Grid: (lines, group).
    """
    line = merges + tl.program_id(0) * 4
    member = tl.program_id(1)
    count = tl.load(line + 3)
    dims = tl.arange(0, tile_size)
    inside = dims < size
    total = tl.zeros((tile_size,), tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    first = tl.load(line + 2)
    for begin in range(0, count, tile_parts):
        number = begin + tl.arange(0, tile_parts)
        part = (first + number).to(tl.int64) * group + member
        lse = tl.load(partial_lse + part, mask=number < count, other=float("-inf"))
        highest = tl.maximum(top, tl.max(lse, 0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        shares = tl.exp2(lse - shift)
        shrink = tl.exp2(top - shift)
        results = tl.load(
            partial + part[:, None] * size + dims[None, :],
            mask=(number < count)[:, None] & inside[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(results * shares[:, None], 0)
        weight = weight * shrink + tl.sum(shares, 0)
        top = highest
    if count > 0:
        row = tl.load(line).to(tl.int64)
        head = tl.load(line + 1) * group + member
        result = total / tl.where(weight == 0.0, 1.0, weight)
        place = out + row * out_stride + head * size + dims
        tl.store(place, result.to(out.dtype.element_ty), mask=inside)
