"""Bytes and operations of attention's launches, from their plans."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from fastgen_kernels.heads import Heads
from fastgen_kernels.work_list import TILE, Counts, Words, WorkList

_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """cache_bytes: keys and values that are read. other_bytes: queries, results and partial results
    (written and read). operations: multiplications and additions that tensor cores do;
    useful_operations: without those for rows and keys that only fill tiles up.
    """

    cache_bytes: int
    other_bytes: int
    operations: int
    useful_operations: int

    @property
    def bytes(self) -> int:
        """To and from the GPU's memory, if its caches kept nothing."""
        return self.cache_bytes + self.other_bytes


def decode_cost(work: WorkList, heads: Heads, cache_item_bytes: int, query_item_bytes: int) -> Cost:
    """Of a work list's launch and its merge."""
    keys = int(work.lengths.sum())
    first, last = work.items[:, 3].astype(np.int64), work.items[:, 4].astype(np.int64)
    tiles = int(np.where(last > first, -(-last // TILE) - first // TILE, 0).sum())
    row_bytes = heads.group * heads.size * query_item_bytes
    results = int((work.items[:, 5] < 0).sum()) + len(work.merges)
    partial = work.num_slots * heads.group * (heads.size + 1) * _FLOAT_BYTES
    rows, size = _padded(heads.group), _padded(heads.size)
    return Cost(
        cache_bytes=2 * keys * heads.size * cache_item_bytes,
        other_bytes=(len(work.items) + results) * row_bytes + 2 * partial,
        operations=4 * tiles * TILE * rows * size,
        useful_operations=4 * keys * heads.group * heads.size,
    )


def prefill_cost(
    tiles: Words,
    heads: Heads,
    tile_rows: int,
    cache_item_bytes: int,
    query_item_bytes: int,
    window: int | None = None,
) -> Cost:
    """tiles: [N, 4] as `prefill_tiles` gives them; each reads all keys that any of it sees."""
    tokens, position = tiles[:, 1].astype(np.int64), tiles[:, 3].astype(np.int64)
    end = position + tokens
    begin = np.zeros_like(end) if window is None else np.maximum(0, position + 1 - window)
    read = int((end - begin).sum())
    computed = int((-(-end // TILE) - begin // TILE).sum()) * TILE
    seen = _seen(end, window) - _seen(position, window)
    return Cost(
        cache_bytes=2 * read * heads.num_kv * heads.size * cache_item_bytes,
        other_bytes=2 * int(tokens.sum()) * heads.num_query * heads.size * query_item_bytes,
        operations=4 * computed * heads.num_kv * tile_rows * _padded(heads.size),
        useful_operations=4 * int(seen.sum()) * heads.num_query * heads.size,
    )


def _seen(ends: Counts, window: int | None) -> Counts:
    """Keys that the queries at positions 0 … ends - 1 see, all together."""
    ramp = ends if window is None else np.minimum(ends, window)
    seen: Counts = ramp * (ramp + 1) // 2 + (ends - ramp) * (window or 0)
    return seen


def _padded(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())
