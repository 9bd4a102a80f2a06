"""The attention twin against dense attention in float64: ragged batches, shuffled blocks."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import attention as twin

KERNELS = kernels_for(Device("cpu"))


@dataclass(frozen=True)
class Case:
    """A batch whose contexts are random and whose other slots are NaN."""

    batch: RaggedBatch
    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    cache: Tensor


def make_case(
    chunks: list[tuple[int, int]],
    seed: int,
    *,
    block_size: int = 16,
    kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 8,
) -> Case:
    """chunks: (start, length) of each."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(start + length) // block_size) for start, length in chunks]
    blocks = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    cache = torch.full((2, len(blocks) * block_size, kv_heads, head_dim), torch.nan)
    tables, keys, values = [], [], []
    for (start, length), count in zip(chunks, counts, strict=True):
        tables.append([blocks.pop() for _ in range(count)])
        shape = (start + length, kv_heads, head_dim)
        keys.append(torch.randn(shape, generator=generator))
        values.append(torch.randn(shape, generator=generator))
        for position in range(start + length):
            slot = tables[-1][position // block_size] * block_size + position % block_size
            cache[0, slot], cache[1, slot] = keys[-1][position], values[-1][position]
    batch = RaggedBatch.of([c[0] for c in chunks], [c[1] for c in chunks], tables, block_size)
    num_tokens = sum(length for _, length in chunks)
    query = torch.randn((num_tokens, kv_heads * group, head_dim), generator=generator)
    return Case(batch, query, keys, values, cache)


def dense(case: Case) -> Tensor:
    """Softmax over each query's visible keys, one head at a time, in float64."""
    out = torch.empty(case.query.shape, dtype=torch.float64)
    group = case.query.shape[1] // case.cache.shape[2]
    row = 0
    for keys, values, start, length in zip(
        case.keys, case.values, case.batch.starts, case.batch.lengths, strict=True
    ):
        for offset in range(int(length)):
            seen = int(start) + offset + 1
            for head in range(case.query.shape[1]):
                query = case.query[row, head].double()
                scores = keys[:seen, head // group].double() @ query / len(query) ** 0.5
                weights = torch.softmax(scores, 0)
                out[row, head] = weights @ values[:seen, head // group].double()
            row += 1
    return out.flatten(1)


def ours(case: Case) -> Tensor:
    token_bytes = case.cache[:, 0].numel() * case.cache.element_size()
    plan = KERNELS.plan_attention(case.batch, token_bytes, torch.float32, torch.device("cpu"))
    return KERNELS.attention(case.query, case.cache, plan)


chunk = st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 40)))


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(chunk, min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    block_size=st.sampled_from([4, 16, 64]),
    heads=st.sampled_from([(1, 1), (1, 4), (2, 3), (4, 1)]),
)
def test_equals_dense_attention(
    chunks: list[tuple[int, int]], seed: int, block_size: int, heads: tuple[int, int]
) -> None:
    """Decodes and prompts in any order and mix; a slot that nobody wrote never shows."""
    case = make_case(chunks, seed, block_size=block_size, kv_heads=heads[0], group=heads[1])
    torch.testing.assert_close(ours(case).double(), dense(case), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("length", [63, 64, 65, 130, 200])
@pytest.mark.parametrize("start", [0, 1, 100])
def test_chunks_longer_than_a_tile(start: int, length: int) -> None:
    case = make_case([(start, length), (5, 1)], seed=length)
    torch.testing.assert_close(ours(case).double(), dense(case), atol=2e-6, rtol=1e-4)


def test_result_does_not_depend_on_neighbours_blocks() -> None:
    """Other requests' keys and values may be anything, NaN included."""
    case = make_case([(20, 1), (21, 1), (0, 9)], seed=7)
    before = ours(case)
    slots = case.batch.context_slots(1, 2)[0]
    case.cache[:, torch.from_numpy(slots)] = torch.nan
    after = ours(case)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2:], after[2:])
    assert after[1].isnan().all()


def test_decodes_of_similar_length_are_grouped() -> None:
    batch = make_case([(99, 1), (98, 1), (95, 1), (10, 1), (0, 5), (9, 1)], seed=1).batch
    assert list(twin._group_bounds(batch, token_bytes=256)) == [(0, 3), (3, 4), (5, 6)]


def test_groups_stay_small_enough_for_the_cache() -> None:
    batch = make_case([(99, 1)] * 8, seed=1).batch
    bounds = list(twin._group_bounds(batch, token_bytes=twin._GROUP_BYTES // 300))
    assert bounds == [(0, 3), (3, 6), (6, 8)]


def test_slots_follow_the_block_table() -> None:
    batch = RaggedBatch.of([0, 5], [3, 2], [[7], [2, 4]], block_size=4)
    assert batch.positions.tolist() == [0, 1, 2, 5, 6]
    assert batch.write_slots.tolist() == [28, 29, 30, 17, 18]
    assert batch.context_slots(1, 2).tolist() == [[8, 9, 10, 11, 16, 17, 18]]
    # The shorter context is padded with its own first slot.
    assert batch.context_slots(0, 2)[0].tolist() == [28, 29, 30, 28, 28, 28, 28]


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="2 are needed"):
        RaggedBatch.of([0], [17], [[3]], block_size=16)


def test_an_empty_tail_of_the_table_is_ignored() -> None:
    batch = RaggedBatch.of([0], [3], [[3, 9, 9]], block_size=16)
    assert np.array_equal(batch.block_tables, [[3]])
