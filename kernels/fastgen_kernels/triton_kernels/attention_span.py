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
    block = _block(table, start, stop, block_bits, tile_keys, whole_tiles)
    for position in range(start, stop, tile_keys):
        if whole_tiles:
            slots = (block.to(tl.int64) << block_bits) + (position & in_block) + tokens
        else:
            slots = (block.to(tl.int64) << block_bits) + (position + tokens & in_block)
        block = _block(table, position + tile_keys, stop, block_bits, tile_keys, whole_tiles)
        offsets = slots * slot_stride
        at = position + tokens
        key_at = keys + offsets[None, :] + dims[:, None]
        value_at = values + offsets[:, None] + dims[None, :]
        there = (at >= begin) & (at < end)
        key, value = _tile(key_at, value_at, there, dims < size, size == tile_size, masked)
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * scale
        scores = _shown(scores, soft_cap, at, low, high, masked, capped)
        weights, shrink, top, weight = _weighed(scores, top, weight)
        value = value.to(query.dtype)
        total = tl.dot(
            weights.to(query.dtype), value, total * shrink[:, None], input_precision="ieee"
        )
    return total, top, weight


@triton.jit
def _block(table, position, stop, block_bits, tile_keys: tl.constexpr, whole_tiles: tl.constexpr):
    """Number of the block that a tile's keys from `position` on lie in; of each key's, else."""
    if not whole_tiles:
        position += tl.arange(0, tile_keys)
    return tl.load(table + (position >> block_bits), mask=position < stop, other=0)


@triton.jit
def _shown(scores, soft_cap, at, low, high, masked: tl.constexpr, capped: tl.constexpr):
    """Scores [M, K] of keys at [K], capped; -∞ where a row does not see a key."""
    if capped:
        # tanh, such that neither end overflows.
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)
    if masked:
        seen = (at[None, :] >= low[:, None]) & (at[None, :] < high[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton.jit
def _tile(key_at, value_at, there, inside, whole_heads: tl.constexpr, masked: tl.constexpr):
    """Keys [tile_size, tile_keys] and values the other way round; 0 where nothing is read.

    there: [tile_keys] tokens that are read, if masked. inside: [tile_size] dimensions that a head
    has; whole_heads: all.
    """
    if masked:
        if whole_heads:
            key = tl.load(key_at, mask=there[None, :], other=0.0)
            value = tl.load(value_at, mask=there[:, None], other=0.0)
        else:
            key = tl.load(key_at, mask=there[None, :] & inside[:, None], other=0.0)
            value = tl.load(value_at, mask=there[:, None] & inside[None, :], other=0.0)
    elif whole_heads:
        key = tl.load(key_at)
        value = tl.load(value_at)
    else:
        key = tl.load(key_at, mask=inside[:, None], other=0.0)
        value = tl.load(value_at, mask=inside[None, :], other=0.0)
    return key, value


@triton.jit
def _weighed(scores, top, weight):
    """Weights of scores [M, K], what earlier weights [M] are multiplied with, and the new top and
    weight."""
    highest = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet: its highest score stays -∞, and exp2 gets no -∞ + ∞.
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(top - shift)
    return weights, shrink, highest, weight * shrink + tl.sum(weights, 1)


@triton.jit
def nothing(tile_rows: tl.constexpr, tile_size: tl.constexpr):
    """Total, top and weight of rows that have seen no key."""
    total = tl.zeros((tile_rows, tile_size), tl.float32)
    top = tl.full((tile_rows,), float("-inf"), tl.float32)
    return total, top, tl.zeros((tile_rows,), tl.float32)
