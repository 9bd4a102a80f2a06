"""Attention of a ragged batch over a paged cache.

Contexts are gathered from the cache, then torch's fused attention runs over them: queries of
single-token chunks (decodes) in groups of similar context length, longer chunks one by one in tiles
of queries, so that hardly any work is spent on keys that a tile may not see.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.ragged import RaggedBatch

_TILE_QUERIES: Final = 64
_GROUP_BYTES: Final = 3 << 20
"""Most keys and values of a group of decodes: gathered, they should still be in the CPU's cache."""
_GROUP_SPREAD: Final = 0.8
"""A group's shortest context is at least this share of its longest: the rest is padding."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Single-token chunks in rows [first, last).

    slots: [rows × longest]; mask: [rows, 1, 1, longest], None when all are as long.
    """

    first: int
    last: int
    longest: int
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """Queries of rows [first, last) over the first `context` keys; mask: [rows, context]."""

    first: int
    last: int
    context: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """A chunk of several tokens. slots: [context]."""

    slots: Tensor
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """What a step's layers have in common; made once per step."""

    groups: tuple[_Group, ...]
    prompts: tuple[_Prompt, ...]


def plan_attention(
    batch: RaggedBatch, token_bytes: int, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """token_bytes: size of one token's keys and values in one layer."""
    groups = tuple(
        _group(batch, first, last, dtype, device)
        for first, last in _group_bounds(batch, token_bytes)
    )
    prompts = tuple(
        _prompt(batch, int(chunk), dtype, device) for chunk in np.nonzero(batch.lengths > 1)[0]
    )
    return AttentionPlan(groups, prompts)


def attention(query: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Causal attention of query [T, heads, D]; gives [T, heads × D].

    cache: [2, slots, kv heads, D], keys before values; the chunks' own are in it already. Query
    heads h × g … (h + 1) × g - 1 share the key/value head h.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[2]
    out = torch.empty_like(query)
    for group in plan.groups:
        rows = group.last - group.first
        shape = (rows, group.longest, num_kv_heads, head_dim)
        keys = cache[0].index_select(0, group.slots).view(shape).transpose(1, 2)
        values = cache[1].index_select(0, group.slots).view(shape).transpose(1, 2)
        # The heads that share keys become rows of one query.
        stacked = query[group.first : group.last].view(rows, num_kv_heads, -1, head_dim)
        result = functional.scaled_dot_product_attention(stacked, keys, values, group.mask)
        out[group.first : group.last] = result.reshape(rows, num_heads, head_dim)
    for prompt in plan.prompts:
        keys = cache[0].index_select(0, prompt.slots).transpose(0, 1)[None]
        values = cache[1].index_select(0, prompt.slots).transpose(0, 1)[None]
        for tile in prompt.tiles:
            result = functional.scaled_dot_product_attention(
                query[tile.first : tile.last].transpose(0, 1)[None],
                keys[:, :, : tile.context],
                values[:, :, : tile.context],
                tile.mask,
                is_causal=tile.mask is None,
                enable_gqa=True,
            )
            out[tile.first : tile.last] = result[0].transpose(0, 1)
    return out.view(num_tokens, num_heads * head_dim)


def _group_bounds(batch: RaggedBatch, token_bytes: int) -> Iterator[tuple[int, int]]:
    """Neighbouring single-token chunks whose contexts are similar and small enough together."""
    first, longest, shortest = 0, 0, 0
    for chunk, (length, context) in enumerate(
        zip(batch.lengths.tolist(), batch.contexts.tolist(), strict=True)
    ):
        if length > 1:
            if first < chunk:
                yield first, chunk
            first = chunk + 1
            continue
        if first == chunk:
            longest = shortest = context
            continue
        most, least = max(longest, context), min(shortest, context)
        too_big = (chunk + 1 - first) * most * token_bytes > _GROUP_BYTES
        if too_big or least < _GROUP_SPREAD * most:
            yield first, chunk
            first, longest, shortest = chunk, context, context
        else:
            longest, shortest = most, least
    if first < len(batch.lengths):
        yield first, len(batch.lengths)


def _group(
    batch: RaggedBatch, first: int, last: int, dtype: torch.dtype, device: torch.device
) -> _Group:
    contexts = batch.contexts[first:last]
    longest = int(contexts.max())
    slots = torch.from_numpy(batch.context_slots(first, last).reshape(-1)).to(device)
    mask = None
    if int(contexts.min()) < longest:
        hidden = torch.from_numpy(np.arange(longest) >= contexts[:, None]).to(device)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None]
    row = int(batch.first_rows[first])
    return _Group(row, row + last - first, longest, slots, mask)


def _prompt(batch: RaggedBatch, chunk: int, dtype: torch.dtype, device: torch.device) -> _Prompt:
    slots = torch.from_numpy(batch.context_slots(chunk, chunk + 1)[0]).to(device)
    start, length = int(batch.starts[chunk]), int(batch.lengths[chunk])
    row = int(batch.first_rows[chunk])
    tiles = []
    for offset in range(0, length, _TILE_QUERIES):
        end = min(offset + _TILE_QUERIES, length)
        context, queries = start + end, end - offset
        mask = None
        if context > queries:  # else the tile is a square, which the fused attention masks itself
            mask = torch.zeros((queries, context), dtype=dtype, device=device)
            mask[:, context - queries :] = torch.full(
                (queries, queries), -torch.inf, dtype=dtype, device=device
            ).triu_(1)
        tiles.append(_Tile(row + offset, row + end, context, mask))
    return _Prompt(slots, tuple(tiles))
