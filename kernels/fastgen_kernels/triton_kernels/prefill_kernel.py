"""Attention of chunks of several tokens: tiles of queries over all keys that any of them sees."""

import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.attention_span import attend_span


@triton.jit(do_not_specialize=["group", "table_stride", "window"])
def prefill(
    query,
    keys,
    values,
    out,
    tiles,
    tables,
    query_stride,
    out_stride,
    slot_stride,
    table_stride,
    group,
    window,
    scale,
    soft_cap,
    value_scale,
    size: tl.constexpr,
    block_m: tl.constexpr,
    block_d: tl.constexpr,
    block_n: tl.constexpr,
    page: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
):
    """One tile of one key/value head: the tile's rows are tokens × the heads that share keys.

    query: [T, heads, size]; keys, values: [slots, kv heads, size]; out: as query. tiles: [N, 4]
    first query row, tokens, row of the block table, position of the first token. window: tokens
    that a query sees, itself included. Grid: (tiles, kv heads).
    """
    tile = tiles + tl.program_id(0) * 4
    head = tl.program_id(1)
    row = tl.load(tile).to(tl.int64)
    tokens = tl.load(tile + 1)
    table = tables + tl.load(tile + 2).to(tl.int64) * table_stride
    position = tl.load(tile + 3)
    rows = tl.arange(0, block_m)
    dims = tl.arange(0, block_d)
    token = rows // group
    wanted = (token < tokens)[:, None] & (dims < size)[None, :]
    heads = (head * group + rows % group)[:, None] * size + dims[None, :]
    queries = tl.load(query + (row + token)[:, None] * query_stride + heads, mask=wanted, other=0.0)
    high = position + token + 1
    end = position + tokens
    if windowed:
        low = high - window
        begin = tl.maximum(0, position + 1 - window)
        masked_from = begin // block_n * block_n
    else:
        low = tl.zeros((block_m,), tl.int32)
        begin = 0
        masked_from = (position + 1) // block_n * block_n
    total = tl.zeros((block_m, block_d), tl.float32)
    top = tl.full((block_m,), float("-inf"), tl.float32)
    weight = tl.zeros((block_m,), tl.float32)
    keys += head * size
    values += head * size
    if not windowed:
        total, top, weight = attend_span(
            queries, total, top, weight, keys, values, slot_stride, table, begin, end, low, high,
            scale, soft_cap, 0, masked_from, size, block_d, block_n, page, False, capped,
        )  # fmt: skip
    total, top, weight = attend_span(
        queries, total, top, weight, keys, values, slot_stride, table, begin, end, low, high,
        scale, soft_cap, masked_from, end, size, block_d, block_n, page, True, capped,
    )  # fmt: skip
    result = total * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
    place = out + (row + token)[:, None] * out_stride + heads
    tl.store(place, result.to(out.dtype.element_ty), mask=wanted)
