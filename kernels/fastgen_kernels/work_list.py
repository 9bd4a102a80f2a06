"""Divides the decodes of a step among the thread blocks (CTAs) of a GPU.

An item is a span of keys of one row and key/value head. A row of one span is written where it
belongs; the spans of others become partial results, which a second launch merges. All keys of the
batch are laid in a line, row after row, and the line is cut in as many equal shares as there are
CTAs, wherever that cuts rows (as in stream-K: Osama et al., 2023, section 4, and LeanAttention:
Sanovar et al., 2024, section 4): one long row cannot keep the other CTAs waiting.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastgen_kernels.heads import Heads

Words = NDArray[np.int32]
Counts = NDArray[np.int64]

TILE: Final = 64
"""Spans begin and end at multiples of so many positions, but for the ends of what a row sees."""
CTAS_PER_MULTIPROCESSOR: Final = 2
_LEAST_TILES: Final = 4
"""Smaller shares cost more in partial results than they bring."""
_FIXED_TILES: Final = 8
_MOST_SPLITS: Final = 16


class Splits(StrEnum):
    """How rows are divided.

    WORK_LIST: equal shares of the batch. FIXED: by the row's own length alone, so that a request's
    result does not depend on its neighbours to the last bit. SPLIT_KV: Dynamic SplitKV, which gives
    a row of L keys min(L // least, 16) splits and raises all of them until there are as many as
    multiprocessors; SPLIT_KV_CAPPED: as its description in prose, without the raise.
    """

    WORK_LIST = "worklist"
    FIXED = "fixed"
    SPLIT_KV = "splitkv"
    SPLIT_KV_CAPPED = "splitkv-capped"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """R single-token chunks. query: [R] row of each query. table: [R] row of its block table.

    first, last: [R] the keys at positions first … last - 1 are seen; none where they are equal.
    """

    query: Counts
    table: Counts
    first: Counts
    last: Counts


@dataclass(frozen=True, slots=True, eq=False)
class WorkList:
    """items: [N, 6] query row, table row, key/value head, first and last position, partial slot.

    The slot is -1 where the item is its row's only one. CTA number c takes the items bounds[c] …
    bounds[c + 1] - 1. merges: [M, 4] query row, key/value head, first slot, number of slots.
    """

    items: Words
    bounds: Words
    merges: Words

    @property
    def num_ctas(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_slots(self) -> int:
        """Partial results that the items write."""
        return int(self.merges[:, 3].sum())

    @property
    def lengths(self) -> Counts:
        """[N] keys of each item."""
        return (self.items[:, 4] - self.items[:, 3]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Most that a work list of up to `rows` rows holds, whatever their lengths."""

    items: int
    merges: int
    slots: int


def num_ctas(num_multiprocessors: int) -> int:
    """Of WORK_LIST and FIXED, whatever the batch."""
    return CTAS_PER_MULTIPROCESSOR * num_multiprocessors


def capacity(num_rows: int, num_kv_heads: int, num_multiprocessors: int) -> Capacity:
    """Of WORK_LIST: each of the cuts between CTAs makes one item more, and splits one row."""
    pairs, cuts = num_rows * num_kv_heads, num_ctas(num_multiprocessors) - 1
    return Capacity(pairs + cuts, min(pairs, cuts), 2 * cuts)


def plan_work(
    rows: Rows,
    heads: Heads,
    num_multiprocessors: int,
    splits: Splits = Splits.WORK_LIST,
    least_split: int = 512,
) -> WorkList:
    """least_split: keys that SPLIT_KV gives a split at least; 512 in its advice, 256 by default."""
    lengths = rows.last - rows.first
    # An empty row takes time, too: zeros are written.
    tiles = np.maximum(1, -(-rows.last // TILE) - rows.first // TILE)
    pair_tiles = np.repeat(tiles, heads.num_kv)
    total, ctas = int(pair_tiles.sum()), num_ctas(num_multiprocessors)
    if splits is Splits.WORK_LIST:
        shares = max(1, min(ctas, -(-total // _LEAST_TILES)))
        cuts = np.arange(1, shares) * total // shares
        pieces = _pieces(pair_tiles, cuts)
        return _work_list(
            rows, heads.num_kv, pieces, np.searchsorted(cuts, pieces.start, "right"), ctas
        )
    if splits is Splits.FIXED:
        # Cut at fixed positions: what a window hides moves no cut.
        pieces = _regular(
            pair_tiles,
            np.full_like(pair_tiles, _FIXED_TILES),
            np.repeat(rows.first // TILE % _FIXED_TILES, heads.num_kv),
        )
        return _work_list(rows, heads.num_kv, pieces, pieces.start * ctas // max(1, total), ctas)
    counts = split_kv(lengths, num_multiprocessors, least_split, raised=splits is Splits.SPLIT_KV)
    spans = np.repeat(-(-tiles // counts), heads.num_kv)
    pieces = _regular(pair_tiles, spans, np.zeros_like(pair_tiles))
    number = len(pieces.pair)
    return _work_list(rows, heads.num_kv, pieces, np.arange(number), number)


def split_kv(
    lengths: Counts, num_multiprocessors: int, least: int, *, raised: bool = True
) -> Counts:
    """[R] splits of rows of `lengths` keys: Dynamic SplitKV's rule; raised: with its last step."""
    if len(lengths) >= num_multiprocessors:
        return np.ones_like(lengths)
    counts = np.where(lengths <= least, 1, np.minimum(lengths // least, _MOST_SPLITS))
    total = int(counts.sum())
    if raised and total < num_multiprocessors:
        counts = np.maximum(1, counts * num_multiprocessors // max(1, total))
    return counts.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """[N] each: the pair of row and head; tiles of the pair before the piece, and with it; tiles of
    all pairs before the piece."""

    pair: Counts
    first: Counts
    last: Counts
    start: Counts


def _pieces(tiles: Counts, cuts: Counts) -> _Pieces:
    """Pairs of `tiles` [P] laid in a line that is cut at `cuts`, ascending and inside of it."""
    ends = np.cumsum(tiles)
    starts = ends - tiles
    before = np.searchsorted(cuts, starts, "right")
    counts = np.searchsorted(cuts, ends, "left") - before + 1
    pair, part = _owners(counts)
    borders = np.concatenate([cuts, [0]])  # the last is never read
    number = before[pair] + part
    first = np.where(part == 0, starts[pair], borders[np.maximum(0, number - 1)])
    last = np.where(part == counts[pair] - 1, ends[pair], borders[np.minimum(number, len(cuts))])
    return _Pieces(pair, first - starts[pair], last - starts[pair], first)


def _regular(tiles: Counts, spans: Counts, offsets: Counts) -> _Pieces:
    """Pairs of `tiles` [P] cut every `spans` tiles, counted from `offsets` tiles before them."""
    counts = -(-(tiles + offsets) // spans)
    pair, part = _owners(counts)
    first = np.maximum(0, part * spans[pair] - offsets[pair])
    last = np.minimum(tiles[pair], (part + 1) * spans[pair] - offsets[pair])
    starts = np.cumsum(tiles) - tiles
    return _Pieces(pair, first, last, starts[pair] + first)


def _owners(counts: Counts) -> tuple[Counts, Counts]:
    """Of each of the pieces, counts[p] for pair p: the pair, and the piece's number in it."""
    pair = np.repeat(np.arange(len(counts)), counts)
    part = np.arange(len(pair)) - (np.cumsum(counts) - counts)[pair]
    return pair, part


def _work_list(
    rows: Rows, num_kv_heads: int, pieces: _Pieces, cta: Counts, num_ctas: int
) -> WorkList:
    """cta: [N] of each piece, ascending."""
    row, head = pieces.pair // num_kv_heads, pieces.pair % num_kv_heads
    begins = rows.first[row] // TILE * TILE
    first = np.maximum(rows.first[row], begins + pieces.first * TILE)
    last = np.maximum(first, np.minimum(rows.last[row], begins + pieces.last * TILE))
    sizes = np.bincount(pieces.pair, minlength=len(rows.query) * num_kv_heads)
    is_partial = sizes[pieces.pair] > 1
    slots = np.where(is_partial, np.cumsum(is_partial) - 1, -1)
    pairs = np.nonzero(sizes > 1)[0]
    counts = sizes[pairs]
    merges = [
        rows.query[pairs // num_kv_heads],
        pairs % num_kv_heads,
        np.cumsum(counts) - counts,
        counts,
    ]
    items = [rows.query[row], rows.table[row], head, first, last, slots]
    bounds = np.zeros(num_ctas + 1, np.int32)
    np.cumsum(np.bincount(cta, minlength=num_ctas), out=bounds[1:])
    return WorkList(
        np.stack(items, 1).astype(np.int32), bounds, np.stack(merges, 1).astype(np.int32)
    )
