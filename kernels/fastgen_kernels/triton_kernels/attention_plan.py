"""What the layers of a step have in common, laid out for the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.tiling import Gpu, Tiling, prefill_tiling
from fastgen_kernels.work_list import (
    Rows,
    Splits,
    WorkList,
    capacity,
    num_ctas,
    plan_work,
)

_ALIGNMENT: Final = 4
"""Words: each part begins at a multiple of 16 bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """On the device, all int32.

    tables: [R, blocks] block tables. items, bounds, merges: of the decodes' `WorkList`; num_slots:
    of the partial results that they write. tiles: [N, 4] of the prompts, see `prefill`, as large as
    prefill_tiling says, those with most keys first. window: tokens that a query sees; None: all up
    to itself.
    """

    heads: Heads
    block_size: int
    window: int | None
    tables: Tensor
    items: Tensor
    bounds: Tensor
    merges: Tensor
    tiles: Tensor
    num_slots: int
    prefill_tiling: Tiling


def make_plan(
    batch: RaggedBatch,
    heads: Heads,
    device: torch.device,
    gpu: Gpu,
    window: int | None = None,
    splits: Splits = Splits.WORK_LIST,
) -> AttentionPlan:
    """One copy to the device. Decodes are the chunks of one token."""
    work = plan_work(decode_rows(batch, window), heads, gpu.multiprocessors, splits)
    tiling = prefill_tiling(heads, gpu.architecture)
    parts = [
        batch.block_tables.astype(np.int32),
        work.items,
        work.bounds,
        work.merges,
        prefill_tiles(batch, tiling.rows // heads.group),
    ]
    tables, items, bounds, merges, tiles = _placed(parts, device)
    return AttentionPlan(
        heads,
        batch.block_size,
        window,
        tables,
        items,
        bounds,
        merges,
        tiles,
        work.num_slots,
        tiling,
    )


def decode_rows(batch: RaggedBatch, window: int | None) -> Rows:
    """The chunks of a token."""
    chunks = np.nonzero(batch.lengths == 1)[0]
    last = batch.contexts[chunks]
    first = np.zeros_like(last) if window is None else np.maximum(0, last - window)
    return Rows(batch.first_rows[chunks], chunks, first, last)


def prefill_tiles(batch: RaggedBatch, tokens: int) -> NDArray[np.int32]:
    """[N, 4] first query row, tokens, row of the block table, position of the first token.

    tokens: most of a tile.
    """
    chunks = np.nonzero(batch.lengths > 1)[0]
    counts = -(-batch.lengths[chunks] // tokens)
    chunk = np.repeat(chunks, counts)
    offset = (np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    lengths = np.minimum(tokens, batch.lengths[chunk] - offset)
    tiles = np.stack(
        [batch.first_rows[chunk] + offset, lengths, chunk, batch.starts[chunk] + offset], 1
    )
    longest_first = np.argsort(-(tiles[:, 3] + tiles[:, 1]), kind="stable")
    return tiles[longest_first].astype(np.int32)


class StaticDecodePlan:
    """A plan of decodes in buffers that stay where they are, for captured CUDA graphs.

    num_rows: of the batch, padding included. num_blocks: most of a request.
    """

    def __init__(
        self,
        num_rows: int,
        num_blocks: int,
        heads: Heads,
        block_size: int,
        device: torch.device,
        gpu: Gpu,
        window: int | None = None,
    ) -> None:
        self._multiprocessors = gpu.multiprocessors
        room = capacity(num_rows, heads.num_kv, gpu.multiprocessors)
        shapes = [
            (num_rows, num_blocks),
            (room.items, 6),
            (num_ctas(gpu.multiprocessors) + 1,),
            (room.merges, 4),
        ]
        self.host = [np.zeros(shape, np.int32) for shape in shapes]
        tables, items, bounds, merges = (
            torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes
        )
        tiles = torch.zeros((0, 4), dtype=torch.int32, device=device)
        self.plan = AttentionPlan(
            heads, block_size, window, tables, items, bounds, merges, tiles, room.slots,
            prefill_tiling(heads, gpu.architecture),
        )  # fmt: skip

    def update(self, batch: RaggedBatch) -> WorkList:
        """batch: at most `num_rows` chunks of a token; the other rows become empty.

        Raises ValueError for a batch that does not fit.
        """
        tables, items, bounds, merges = self.host
        num_rows, num_blocks = tables.shape
        chunks, blocks = batch.block_tables.shape
        if chunks > num_rows or blocks > num_blocks or int(batch.lengths.max(initial=0)) > 1:
            raise ValueError(
                f"a plan for {num_rows} chunks of a token and {num_blocks} blocks cannot hold "
                f"{chunks} of up to {batch.lengths.max(initial=0)} tokens and {blocks} blocks"
            )
        rows = decode_rows(batch, self.plan.window)
        padding = np.arange(chunks, num_rows)
        nothing = np.zeros(len(padding), np.int64)
        padded = Rows(
            np.concatenate([rows.query, padding]),
            np.concatenate([rows.table, padding]),
            np.concatenate([rows.first, nothing]),
            np.concatenate([rows.last, nothing]),
        )
        work = plan_work(padded, self.plan.heads, self._multiprocessors)
        tables[:chunks, :blocks] = batch.block_tables
        items[: len(work.items)] = work.items
        bounds[:] = work.bounds
        merges[: len(work.merges)] = work.merges
        merges[len(work.merges) :] = 0
        plan = self.plan
        for target, source in zip(
            (plan.tables, plan.items, plan.bounds, plan.merges), self.host, strict=True
        ):
            target.copy_(torch.from_numpy(source))
        return work


def _placed(parts: Sequence[NDArray[np.int32]], device: torch.device) -> list[Tensor]:
    """The parts on the device, as views of one tensor."""
    sizes = [-(-part.size // _ALIGNMENT) * _ALIGNMENT for part in parts]
    ends = np.cumsum(sizes)
    words = np.zeros(max(1, int(ends[-1])), np.int32)
    for part, end, size in zip(parts, ends, sizes, strict=True):
        words[end - size : end - size + part.size] = part.reshape(-1)
    there = torch.from_numpy(words).to(device)
    return [
        there[end - size : end - size + part.size].view(part.shape)
        for part, end, size in zip(parts, ends.tolist(), sizes, strict=True)
    ]
