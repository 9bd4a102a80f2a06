"""Ragged batches over a paged cache, and what attention over them is in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch


@dataclass(frozen=True)
class Case:
    """A batch whose contexts are random and whose other slots are NaN.

    keys, values: of each chunk [context, kv heads, D], as the cache has them.
    """

    batch: RaggedBatch
    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    cache: Tensor

    @property
    def heads(self) -> Heads:
        return Heads(self.query.shape[1], *self.cache.shape[2:])


def make_case(
    chunks: list[tuple[int, int]],
    seed: int,
    *,
    block_size: int = 16,
    kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """chunks: (start, length) of each."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(start + length) // block_size) for start, length in chunks]
    blocks = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    cache = torch.full((2, len(blocks) * block_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    tables, keys, values = [], [], []
    for (start, length), count in zip(chunks, counts, strict=True):
        tables.append([blocks.pop() for _ in range(count)])
        context = start + length
        shape = (context, kv_heads, head_dim)
        keys.append(torch.randn(shape, generator=generator).to(dtype))
        values.append(torch.randn(shape, generator=generator).to(dtype))
        position = torch.arange(context)
        slots = torch.tensor(tables[-1])[position // block_size] * block_size
        slots += position % block_size
        cache[0, slots], cache[1, slots] = keys[-1], values[-1]
    batch = RaggedBatch.of([c[0] for c in chunks], [c[1] for c in chunks], tables, block_size)
    num_tokens = sum(length for _, length in chunks)
    query = torch.randn((num_tokens, kv_heads * group, head_dim), generator=generator).to(dtype)
    return Case(batch, query, keys, values, cache)


def dense(
    case: Case, window: int | None = None, scale: float | None = None, cap: float | None = None
) -> Tensor:
    """Softmax over each query's visible keys in float64: [T, heads × D]."""
    out = torch.empty(case.query.shape, dtype=torch.float64)
    group = case.heads.group
    row = 0
    for keys, values, start, length in zip(
        case.keys, case.values, case.batch.starts.tolist(), case.batch.lengths.tolist(), strict=True
    ):
        wide_keys = keys.double().repeat_interleave(group, 1)
        scores = torch.einsum(
            "qhd,khd->hqk", case.query[row : row + length].double(), wide_keys
        ) * (scale or case.query.shape[2] ** -0.5)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        at, key = torch.arange(start, start + length)[:, None], torch.arange(len(keys))
        hidden = (key > at) | (key <= at - (window or 1 << 40))
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        wide_values = values.double().repeat_interleave(group, 1)
        out[row : row + length] = torch.einsum("hqk,khd->qhd", weights, wide_values)
        row += length
    return out.flatten(1)
