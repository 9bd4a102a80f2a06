"""Attention of chunks of several tokens: tiles of queries over all keys that any of them sees."""

import triton
import triton.language as tl

from fastgen_kernels.triton_kernels.attention_span import attend_span, nothing


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
    low, begin, masked_from = _begin(position, token, window, tile_keys, windowed)
    high, end = position + token + 1, position + tokens
    total, top, weight = nothing(tile_rows, tile_size)
    if not windowed:
        total, top, weight = attend_span(
            queries, total, top, weight, keys + head * size, values + head * size, slot_stride,
            table, block_bits, begin, end, low, high, scale, soft_cap, 0, masked_from,
            size, tile_size, tile_keys, whole_tiles, False, capped,
        )  # fmt: skip
    total, top, weight = attend_span(
        queries, total, top, weight, keys + head * size, values + head * size, slot_stride,
        table, block_bits, begin, end, low, high, scale, soft_cap, masked_from, end,
        size, tile_size, tile_keys, whole_tiles, True, capped,
    )  # fmt: skip
    result = total * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
    place = out + (row + token)[:, None] * out_stride + heads
    tl.store(place, result.to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _begin(position, token, window, tile_keys: tl.constexpr, windowed: tl.constexpr):
    """The first key that each row sees [M], the first that any does, and from which tile on not
    all rows see all keys. position: of the tile's first token; token: [M] number of a row's."""
    if windowed:
        low = position + token + 1 - window
        begin = tl.maximum(0, position + 1 - window)
        masked_from = begin // tile_keys * tile_keys
    else:
        low = token * 0
        begin = 0
        masked_from = (position + 1) // tile_keys * tile_keys
    return low, begin, masked_from
