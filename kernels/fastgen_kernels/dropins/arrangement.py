"""Keys that lie in rows, arranged as blocks: what the kernels' ragged batch reads."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from fastgen_kernels.dropins.spans import Spans
from fastgen_kernels.ragged import Integers, RaggedBatch

BLOCK_SIZE: Final = 64
"""As the engine's default; the kernels' tiles of keys fit in."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Chunks of queries over copies of the keys that they see.

    batch: the chunks, of no query that sees nothing. window: of `plan_attention`. queries: [T]
    places of the chunks' tokens among all queries, rows one after the other. key_rows, key_places:
    [slots] which key of which row is copied to each slot; the last one fills a block up.
    """

    batch: RaggedBatch
    window: int | None
    queries: Integers
    key_rows: Integers
    key_places: Integers


def arrange(spans: Spans, block_size: int = BLOCK_SIZE) -> Arrangement:
    """Consecutive queries of a row become one chunk while each sees one key more than the last.

    Once they see the most that any query does, each may leave out one more of the first keys: a
    sliding window. Chunks of a row that begin to see at the same key share the copies.
    """
    num_queries = spans.first.shape[1]
    queries = np.flatnonzero(spans.last > spans.first)
    rows = queries // num_queries
    first, last = spans.first.reshape(-1)[queries], spans.last.reshape(-1)[queries]
    most = int((last - first).max(initial=0))
    slides = (np.diff(first) == 1) & ((last - first)[1:] == most)
    goes_on = (np.diff(queries) == 1) & (np.diff(rows) == 0) & (np.diff(last) == 1)
    goes_on &= (np.diff(first) == 0) | slides
    begins = np.flatnonzero(np.concatenate(([True], ~goes_on))[: len(queries)])
    ends = np.append(begins[1:], len(queries))[: len(begins)]
    lengths = ends - begins
    bases = first[begins]
    # One copy for all chunks of a row that begin to see at the same key.
    copies, which = np.unique(rows[begins] * spans.num_keys + bases, return_inverse=True)
    sizes = np.zeros(len(copies), np.int64)
    np.maximum.at(sizes, which, last[ends - 1] - bases)
    blocks = -(-sizes // block_size)
    first_blocks = np.cumsum(blocks) - blocks
    tables = first_blocks[which][:, None] + np.arange(int(blocks.max(initial=0)))
    batch = RaggedBatch(last[begins] - 1 - bases, lengths, tables, block_size)
    owners = np.repeat(np.arange(len(copies)), blocks * block_size)
    offsets = np.arange(len(owners)) - first_blocks[owners] * block_size
    places = copies[owners] % spans.num_keys + np.minimum(offsets, sizes[owners] - 1)
    window = most if bool((goes_on & slides).any()) else None
    return Arrangement(batch, window, queries, copies[owners] // spans.num_keys, places)
