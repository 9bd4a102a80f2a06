"""vLLM's blocks as the kernels read them.

vLLM hands each layer a cache [blocks, kv heads, tokens, 2 × D] and never looks inside a block. So
a block holds here what the kernels want: the keys of all its tokens, then their values. Counted in
blocks of keys alone, the keys of block b are block 2b, and its values block 2b + 1.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.dropins.devices import kernels_on
from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch


def as_slots(cache: Tensor) -> Tensor:
    """[2, slots, kv heads, D], in the memory of cache [blocks, kv heads, tokens, 2 × D].

    Raises UnsupportedAttentionError when that is not in one piece.
    """
    if not cache.is_contiguous():
        raise UnsupportedAttentionError(
            f"a KV cache with strides {cache.stride()}: FastGen's kernels take vLLM's layout LBHNC"
        )
    blocks, num_kv, tokens, both = cache.shape
    token, block = num_kv * both // 2, num_kv * both // 2 * tokens
    # Values begin one block of keys later.
    shape = (2, (2 * blocks - 1) * tokens, num_kv, both // 2)
    return cache.as_strided(shape, (block, token, both // 2, 1))


def write_slots(slot_mapping: Tensor, block_size: int) -> Tensor:
    """Where a token's key goes in `as_slots`, from its slot in vLLM's numbering."""
    return slot_mapping + slot_mapping // block_size * block_size


def ragged_batch(
    query_bounds: Tensor, contexts: Tensor, tables: Tensor, block_size: int
) -> RaggedBatch:
    """Of the requests that have new tokens, over the blocks of `as_slots`.

    query_bounds: [R + 1] where requests begin among the tokens. contexts: [R] tokens of each, the
    new ones included. tables: [R, …] of vLLM's blocks.
    """
    bounds = query_bounds.cpu().numpy().astype(np.int64)
    lengths = bounds[1:] - bounds[:-1]
    active = lengths > 0
    lengths = lengths[active]
    starts = contexts.cpu().numpy().astype(np.int64)[: len(active)][active] - lengths
    most = int((-(-(starts + lengths) // block_size)).max(initial=0))
    blocks = tables[: len(active), :most].cpu().numpy().astype(np.int64)[active]
    return RaggedBatch(starts, lengths, 2 * blocks, block_size)


@dataclass(slots=True, eq=False)
class Metadata:
    """Of one step, for the layers that share blocks.

    num_tokens: of the batch, without padding. slot_mapping: see `write_slots`.
    """

    batch: RaggedBatch
    num_tokens: int
    slot_mapping: Tensor
    _plans: dict[Hashable, Any] = field(default_factory=dict)

    def plan(
        self, heads: Heads, dtype: torch.dtype, device: torch.device, window: int | None
    ) -> Any:
        """Made once for layers that are alike."""
        wanted = (heads, dtype, device, window)
        if wanted not in self._plans:
            self._plans[wanted] = kernels_on(device).plan_attention(
                self.batch, heads, dtype, device, window
            )
        return self._plans[wanted]
