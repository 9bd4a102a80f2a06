"""Attention of chunks of several tokens: tiles of queries over all keys that any of them sees."""

import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.attention_span import attend_span


@triton.jit(do_not_specialize=["group", "block_bits", "table_stride", "window"])
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
    block_bits,
    window,
    scale,
    soft_cap,
    value_scale,
    size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_size: tl.constexpr,
    tile_keys: tl.constexpr,
    whole_tiles: tl.constexpr,
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
    rows = tl.arange(0, tile_rows)
    dims = tl.arange(0, tile_size)
    token = rows // group
    wanted = (token < tokens)[:, None] & (dims < size)[None, :]
    heads = (head * group + rows % group)[:, None] * size + dims[None, :]
    queries = tl.load(query + (row + token)[:, None] * query_stride + heads, mask=wanted, other=0.0)
    high = position + token + 1
    end = position + tokens
    if windowed:
        low = high - window
        begin = tl.maximum(0, position + 1 - window)
        masked_from = begin // tile_keys * tile_keys
    else:
        low = tl.zeros((tile_rows,), tl.int32)
        begin = 0
        masked_from = (position + 1) // tile_keys * tile_keys
    total = tl.zeros((tile_rows, tile_size), tl.float32)
    top = tl.full((tile_rows,), float("-inf"), tl.float32)
    weight = tl.zeros((tile_rows,), tl.float32)
    keys += head * size
    values += head * size
    if not windowed:
        total, top, weight = attend_span(
            queries, total, top, weight, keys, values, slot_stride, table, block_bits, begin, end,
            low, high, scale, soft_cap, 0, masked_from,
            size, tile_size, tile_keys, whole_tiles, False, capped,
        )  # fmt: skip
    total, top, weight = attend_span(
        queries, total, top, weight, keys, values, slot_stride, table, block_bits, begin, end,
        low, high, scale, soft_cap, masked_from, end,
        size, tile_size, tile_keys, whole_tiles, True, capped,
    )  # fmt: skip
    result = total * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
    place = out + (row + token)[:, None] * out_stride + heads
    tl.store(place, result.to(out.dtype.element_ty), mask=wanted)
