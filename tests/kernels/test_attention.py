"""The attention twin against dense attention in float64: ragged batches, shuffled blocks."""

import numpy as np
import pytest
import torch
from attention_cases import Case, dense, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins import attention as twin

KERNELS = kernels_for(Device("cpu"))


def ours(
    case: Case, window: int | None = None, scale: float | None = None, cap: float | None = None
) -> Tensor:
    plan = KERNELS.plan_attention(
        case.batch, case.heads, torch.float32, torch.device("cpu"), window
    )
    return KERNELS.attention(case.query, case.cache, plan, scale, cap)


def assert_equal(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)


chunk = st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 40)))


@settings(max_examples=60)
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
    assert_equal(ours(case), dense(case))


@pytest.mark.parametrize("length", [63, 64, 65, 130, 200])
@pytest.mark.parametrize("start", [0, 1, 100])
def test_chunks_longer_than_a_tile(start: int, length: int) -> None:
    case = make_case([(start, length), (5, 1)], seed=length)
    assert_equal(ours(case), dense(case))


@settings(max_examples=60)
@given(
    chunks=st.lists(chunk, min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    window=st.one_of(st.integers(1, 40), st.integers(60, 120)),
    heads=st.sampled_from([(1, 4), (2, 3), (4, 1)]),
)
def test_a_window_hides_what_is_older(
    chunks: list[tuple[int, int]], seed: int, window: int, heads: tuple[int, int]
) -> None:
    case = make_case(chunks, seed, kv_heads=heads[0], group=heads[1])
    assert_equal(ours(case, window), dense(case, window))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 66, 129])
def test_windows_around_blocks_tiles_and_contexts(window: int) -> None:
    """Contexts one below, at and one above the window, as decodes and as prompts."""
    lengths = {max(1, window + offset) for offset in (-1, 0, 1, 64)}
    chunks = [(length - 1, 1) for length in lengths] + [(0, length) for length in lengths]
    chunks += [(start, 65) for start in lengths]
    case = make_case(chunks, seed=window, kv_heads=1, group=2)
    assert_equal(ours(case, window), dense(case, window))


def test_blocks_before_the_window_are_never_read() -> None:
    """They may be another request's by then, and their entries in the table anything."""
    case = make_case([(99, 1), (40, 70), (80, 1)], seed=3)
    expected = dense(case, window=20)
    blocks = {int(block) for chunk, first in ((0, 80), (1, 21), (2, 61))
              for block in case.batch.block_tables[chunk, : first // 16]}  # fmt: skip
    for block in blocks:
        case.cache[:, block * 16 : (block + 1) * 16] = torch.nan
    assert_equal(ours(case, window=20), expected)
    for chunk, first in ((0, 80), (1, 21), (2, 61)):
        case.batch.block_tables[chunk, : first // 16] = 1 << 40
    assert_equal(ours(case, window=20), expected)


def test_a_window_bounds_what_is_gathered() -> None:
    case = make_case([(999, 1), (800, 100)], seed=3)
    plan = twin.plan_attention(case.batch, Heads(2, 2, 16), torch.float32, torch.device("cpu"), 50)
    assert len(plan.groups[0].slots) == 50
    assert len(plan.prompts[0].slots) == 149
    assert [tile.last_key - tile.first_key for tile in plan.prompts[0].tiles] == [113, 85]


@pytest.mark.parametrize("head_dim", [5, 20, 80, 96, 160])
def test_head_sizes_that_are_no_powers_of_two(head_dim: int) -> None:
    case = make_case([(30, 1), (31, 1), (7, 20)], seed=head_dim, head_dim=head_dim)
    assert_equal(ours(case), dense(case))


@pytest.mark.parametrize("window", [None, 10])
@pytest.mark.parametrize(("scale", "cap"), [(0.5, None), (None, 1.5), (0.3, 2.0)])
def test_scale_and_soft_cap(scale: float | None, cap: float | None, window: int | None) -> None:
    case = make_case([(30, 1), (31, 1), (7, 20)], seed=4)
    assert_equal(ours(case, window, scale, cap), dense(case, window, scale, cap))


def test_result_does_not_depend_on_neighbours_blocks() -> None:
    """Other requests' keys and values may be anything, NaN included."""
    case = make_case([(20, 1), (21, 1), (0, 9)], seed=7)
    before = ours(case)
    slots = case.batch.last_slots(1, 2, case.batch.contexts[1:2])[0]
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
    assert batch.last_slots(1, 2, np.array([7])).tolist() == [[8, 9, 10, 11, 16, 17, 18]]
    assert batch.last_slots(1, 2, np.array([2])).tolist() == [[17, 18]]
    # The shorter row is padded with its own first slot.
    padded = batch.last_slots(0, 2, np.array([2, 4]))
    assert padded.tolist() == [[29, 30, 29, 29], [11, 16, 17, 18]]


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="2 are needed"):
        RaggedBatch.of([0], [17], [[3]], block_size=16)


def test_an_empty_tail_of_the_table_is_ignored() -> None:
    batch = RaggedBatch.of([0], [3], [[3, 9, 9]], block_size=16)
    assert np.array_equal(batch.block_tables, [[3]])
