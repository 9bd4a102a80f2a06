"""A ragged batch: chunks of several requests side by side, and where their keys and values live."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """R chunks of T tokens together, on the host.

    starts, lengths: [R] first position and number of new tokens of each chunk.
    block_tables: [R, most blocks of a chunk]; entries past a chunk's context are never read.
    A slot is a token's place in the cache: block id × block size + offset in the block.
    """

    starts: Integers
    lengths: Integers
    block_tables: Integers
    block_size: int

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        lengths: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
    ) -> "RaggedBatch":
        """From Python lists; raises ValueError when a table does not cover its chunk."""
        needed = [
            -(-(start + length) // block_size)
            for start, length in zip(starts, lengths, strict=True)
        ]
        tables = np.zeros((len(needed), max(needed)), np.int64)
        for row, table, count in zip(tables, block_tables, needed, strict=True):
            if len(table) < count:
                raise ValueError(f"a block table of {len(table)} blocks, {count} are needed")
            row[:count] = table[:count]
        return cls(np.array(starts), np.array(lengths), tables, block_size)

    @cached_property
    def contexts(self) -> Integers:
        """[R] tokens that the last query of each chunk sees, itself included."""
        return self.starts + self.lengths

    @cached_property
    def first_rows(self) -> Integers:
        """[R] row of each chunk's first token among the T tokens."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def positions(self) -> Integers:
        """[T] position of each token in its request."""
        offsets = np.repeat(self.starts - self.first_rows, self.lengths)
        return np.arange(len(offsets)) + offsets

    @cached_property
    def write_slots(self) -> Integers:
        """[T] slot that each token's key and value go to."""
        chunks = np.repeat(np.arange(len(self.lengths)), self.lengths)
        blocks = self.block_tables[chunks, self.positions // self.block_size]
        slots: Integers = blocks * self.block_size + self.positions % self.block_size
        return slots

    def seen(self, window: int | None) -> Integers:
        """[R] tokens that the last query of each chunk sees: its window counts itself."""
        return self.contexts if window is None else np.minimum(self.contexts, window)

    def last_slots(self, first: int, last: int, counts: Integers) -> Integers:
        """[last - first, most] slots of the last `counts` [last - first] tokens of each context.

        For chunks first … last - 1. Shorter rows are padded with the slot of their own first
        counted token: reading it is safe, whereas a slot that was never written may hold anything,
        NaN included. Entries of the block table before the counted tokens are not read.
        """
        offsets = np.arange(int(counts.max()))
        begins = (self.contexts[first:last] - counts)[:, None]
        positions = begins + np.where(offsets < counts[:, None], offsets, 0)
        rows = np.arange(first, last)[:, None]
        blocks = self.block_tables[rows, positions // self.block_size]
        slots: Integers = blocks * self.block_size + positions % self.block_size
        return slots
