"""The loop that both attention kernels share: queries over a span of keys in a paged cache.

The running softmax is of Milakov and Gimelshein, 2018, over tiles as in FlashAttention-2 (Dao,
2023, section 3.1), with powers of two. The number of a tile's block is loaded one tile ahead: were
it loaded where it is used, Triton would prefetch half as many tiles.
"""

import triton
import triton.language as tl


@triton.jit
def attend_span(
    query,
    total,
    top,
    weight,
    keys,
    values,
    slot_stride,
    table,
    block_bits,
    begin,
    end,
    low,
    high,
    scale,
    soft_cap,
    start,
    stop,
    size: tl.constexpr,
    tile_size: tl.constexpr,
    tile_keys: tl.constexpr,
    whole_tiles: tl.constexpr,
    masked: tl.constexpr,
    capped: tl.constexpr,
):
    """Adds the keys at positions start … stop - 1 to what was accumulated; start % tile_keys == 0.

    query: [M, tile_size]. total: [M, tile_size] sum of weighted values; top: [M] largest score so
    far; weight: [M] sum of weights. keys, values: of a head. table: the request's block table, of
    blocks of 2^block_bits tokens; whole_tiles: a tile of keys lies in one. masked: only keys at
    begin … end - 1 are read, and a row sees those at low … high - 1 of them, each [M]; else all
    rows see all keys. scale: of scores, times log2(e). soft_cap: times log2(e).
    """
    in_block = (1 << block_bits) - 1
    tokens = tl.arange(0, tile_keys)
    dims = tl.arange(0, tile_size)
    if whole_tiles:
        block = tl.load(table + (start >> block_bits), mask=start < stop, other=0)
    else:
        block = tl.load(table + (start + tokens >> block_bits), mask=start + tokens < stop, other=0)
    for position in range(start, stop, tile_keys):
        if whole_tiles:
            slots = (block.to(tl.int64) << block_bits) + (position & in_block) + tokens
            ahead = position + tile_keys
        else:
            slots = (block.to(tl.int64) << block_bits) + (position + tokens & in_block)
            ahead = position + tile_keys + tokens
        block = tl.load(table + (ahead >> block_bits), mask=ahead < stop, other=0)
        offsets = slots * slot_stride
        at = position + tokens
        key_at = keys + offsets[None, :] + dims[:, None]
        value_at = values + offsets[:, None] + dims[None, :]
        if masked:
            there = (at >= begin) & (at < end)
            if size == tile_size:
                key = tl.load(key_at, mask=there[None, :], other=0.0)
                value = tl.load(value_at, mask=there[:, None], other=0.0)
            else:
                inside = dims < size
                key = tl.load(key_at, mask=there[None, :] & inside[:, None], other=0.0)
                value = tl.load(value_at, mask=there[:, None] & inside[None, :], other=0.0)
        elif size == tile_size:
            key = tl.load(key_at)
            value = tl.load(value_at)
        else:
            inside = dims < size
            key = tl.load(key_at, mask=inside[:, None], other=0.0)
            value = tl.load(value_at, mask=inside[None, :], other=0.0)
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * scale
        if capped:
            # tanh, such that neither end overflows.
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)
        if masked:
            seen = (at[None, :] >= low[:, None]) & (at[None, :] < high[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet: its highest score stays -∞, and exp2 gets no -∞ + ∞.
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        weight = weight * shrink + tl.sum(weights, 1)
        value = value.to(query.dtype)
        total = tl.dot(
            weights.to(query.dtype), value, total * shrink[:, None], input_precision="ieee"
        )
        top = highest
    return total, top, weight
