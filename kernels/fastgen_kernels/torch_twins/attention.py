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
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.heads import Heads
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
    """Queries of rows [first, last) over the keys [first_key, last_key) of their chunk's slots.

    mask: [rows, keys].
    """

    first: int
    last: int
    first_key: int
    last_key: int
    mask: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """A chunk of several tokens. slots: [tokens that any of its queries sees]."""

    slots: Tensor
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """What a step's layers have in common; made once per step and window."""

    groups: tuple[_Group, ...]
    prompts: tuple[_Prompt, ...]


def plan_attention(
    batch: RaggedBatch,
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
) -> AttentionPlan:
    """dtype: of keys and values.

    window: how many tokens a query sees, itself included (Jiang et al., 2023, section 2); others
    are not read. None: all up to itself.
    """
    groups = tuple(
        _group(batch, first, last, dtype, device, window)
        for first, last in _group_bounds(batch, heads.token_bytes(dtype.itemsize), window)
    )
    prompts = tuple(
        _prompt(batch, int(chunk), dtype, device, window)
        for chunk in np.nonzero(batch.lengths > 1)[0]
    )
    return AttentionPlan(groups, prompts)


def attention(
    query: Tensor,
    cache: Tensor,
    plan: AttentionPlan,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Causal attention of query [T, heads, D]; gives [T, heads × D].

    cache: [2, slots, kv heads, D], keys before values; the chunks' own are in it already. Query
    heads h × g … (h + 1) × g - 1 share the key/value head h. scale: of the scores, 1/√D when None.
    soft_cap: scores become soft_cap · tanh(scores / soft_cap) (Gemma 2, 2024, section 2).
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[2]
    cached_keys, cached_values = cache.unbind()
    out = torch.empty_like(query)
    for group in plan.groups:
        rows = group.last - group.first
        shape = (rows, group.longest, num_kv_heads, head_dim)
        keys = cached_keys.index_select(0, group.slots).view(shape).transpose(1, 2)
        values = cached_values.index_select(0, group.slots).view(shape).transpose(1, 2)
        # The heads that share keys become rows of one query.
        stacked = query[group.first : group.last].view(rows, num_kv_heads, -1, head_dim)
        result = _attend(stacked, keys, values, group.mask, scale, soft_cap)
        out[group.first : group.last] = result.reshape(rows, num_heads, head_dim)
    for prompt in plan.prompts:
        keys = cached_keys.index_select(0, prompt.slots).transpose(0, 1)[None]
        values = cached_values.index_select(0, prompt.slots).transpose(0, 1)[None]
        for tile in prompt.tiles:
            result = _attend(
                query[tile.first : tile.last].transpose(0, 1)[None],
                keys[:, :, tile.first_key : tile.last_key],
                values[:, :, tile.first_key : tile.last_key],
                tile.mask,
                scale,
                soft_cap,
            )
            out[tile.first : tile.last] = result[0].transpose(0, 1)
    return out.view(num_tokens, num_heads * head_dim)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    """query [N, heads, Q, D] over keys and values [N, kv heads, K, D]; mask is added to scores."""
    if soft_cap is None:
        return functional.scaled_dot_product_attention(
            query, keys, values, mask, scale=scale, enable_gqa=True
        )
    shared = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    scores = (query @ keys.transpose(-1, -2)).float() * (scale or query.shape[-1] ** -0.5)
    scores = torch.tanh(scores / soft_cap) * soft_cap
    if mask is not None:
        scores += mask
    return torch.softmax(scores, -1).to(values.dtype) @ values


def _group_bounds(
    batch: RaggedBatch, token_bytes: int, window: int | None = None
) -> Iterator[tuple[int, int]]:
    """Neighbouring single-token chunks that see similarly many and together few enough tokens."""
    first, longest, shortest = 0, 0, 0
    for chunk, (length, seen) in enumerate(
        zip(batch.lengths.tolist(), batch.seen(window).tolist(), strict=True)
    ):
        if length > 1:
            if first < chunk:
                yield first, chunk
            first = chunk + 1
            continue
        if first == chunk:
            longest = shortest = seen
            continue
        most, least = max(longest, seen), min(shortest, seen)
        too_big = (chunk + 1 - first) * most * token_bytes > _GROUP_BYTES
        if too_big or least < _GROUP_SPREAD * most:
            yield first, chunk
            first, longest, shortest = chunk, seen, seen
        else:
            longest, shortest = most, least
    if first < len(batch.lengths):
        yield first, len(batch.lengths)


def _group(
    batch: RaggedBatch,
    first: int,
    last: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None,
) -> _Group:
    seen = batch.seen(window)[first:last]
    longest = int(seen.max())
    slots = torch.from_numpy(batch.last_slots(first, last, seen).reshape(-1)).to(device)
    mask = None
    if int(seen.min()) < longest:
        mask = _mask(np.arange(longest) >= seen[:, None], dtype, device)[:, None, None]
    row = int(batch.first_rows[first])
    return _Group(row, row + last - first, longest, slots, mask)


def _prompt(
    batch: RaggedBatch, chunk: int, dtype: torch.dtype, device: torch.device, window: int | None
) -> _Prompt:
    start, length = int(batch.starts[chunk]), int(batch.lengths[chunk])
    row = int(batch.first_rows[chunk])
    window = start + length if window is None else window
    begin = max(0, start + 1 - window)  # of what the chunk's first query sees
    slots = batch.last_slots(chunk, chunk + 1, np.array([start + length - begin]))[0]
    tiles = []
    for first in range(start, start + length, _TILE_QUERIES):
        last = min(first + _TILE_QUERIES, start + length)
        first_key = max(0, first + 1 - window)
        queries, keys = np.arange(first, last)[:, None], np.arange(first_key, last)
        mask = _mask((keys > queries) | (keys <= queries - window), dtype, device)
        rows = (row + first - start, row + last - start)
        tiles.append(_Tile(*rows, first_key - begin, last - begin, mask))
    return _Prompt(torch.from_numpy(slots).to(device), tuple(tiles))


def _mask(hidden: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to scores: 0, and -∞ where hidden."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)
