"""What the layers of a step have in common, laid out for the kernels."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.tiling import Gpu, Tiling, prefill_tiling
from fastgen_kernels.triton_kernels.upload import upload
from fastgen_kernels.work_list import (
    Rows,
    Splits,
    capacity,
    num_ctas,
    plan_work,
)


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
    tables, items, bounds, merges, tiles = upload(parts, device)
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

    num_rows: of the largest batch, padding included. num_blocks: most of a request.
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
        self._gpu = gpu
        room = capacity(num_rows, heads.num_kv, gpu.multiprocessors)

        def words(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._whole = AttentionPlan(
            heads,
            block_size,
            window,
            tables=words(num_rows, num_blocks),
            items=words(room.items, 6),
            bounds=words(num_ctas(gpu.multiprocessors) + 1),
            merges=words(room.merges, 4),
            tiles=words(0, 4),
            num_slots=room.slots,
            prefill_tiling=prefill_tiling(heads, gpu.architecture),
        )

    def plan(self, num_rows: int) -> AttentionPlan:
        """For batches that are padded to so many rows: parts of the buffers."""
        whole = self._whole
        room = capacity(num_rows, whole.heads.num_kv, self._gpu.multiprocessors)
        return replace(
            whole,
            tables=whole.tables[:num_rows],
            items=whole.items[: room.items],
            merges=whole.merges[: room.merges],
            num_slots=room.slots,
        )

    def update(self, batch: RaggedBatch, num_rows: int) -> None:
        """batch: at most `num_rows` chunks of a token; the other rows become empty.

        Raises ValueError for a batch that does not fit.
        """
        plan = self.plan(num_rows)
        chunks, blocks = batch.block_tables.shape
        longest = int(batch.lengths.max(initial=0))
        if chunks > len(plan.tables) or blocks > plan.tables.shape[1] or longest > 1:
            raise ValueError(
                f"a plan for {len(plan.tables)} chunks of a token and {plan.tables.shape[1]} "
                f"blocks cannot hold {chunks} of up to {longest} tokens and {blocks} blocks"
            )
        rows = _padded(decode_rows(batch, plan.window), num_rows)
        work = plan_work(rows, plan.heads, self._gpu.multiprocessors)
        merges = np.zeros(plan.merges.shape, np.int32)  # lines of no slots
        merges[: len(work.merges)] = work.merges
        for target, source in (
            (plan.tables[:chunks, :blocks], batch.block_tables.astype(np.int32)),
            (plan.items[: len(work.items)], work.items),
            (plan.bounds, work.bounds),
            (plan.merges, merges),
        ):
            target.copy_(torch.from_numpy(source))


def _padded(rows: Rows, num_rows: int) -> Rows:
    """With rows that see nothing."""
    padding = np.arange(len(rows.query), num_rows)
    nothing = np.zeros_like(padding)
    return Rows(
        np.concatenate([rows.query, padding]),
        np.concatenate([rows.table, padding]),
        np.concatenate([rows.first, nothing]),
        np.concatenate([rows.last, nothing]),
    )
