"""Plans in buffers that stay where they are, as captured CUDA graphs need them."""

import numpy as np
import pytest
import torch
from attention_cases import Case, dense, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_attention import CPU, run
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention import launches
from fastgen_kernels.triton_kernels.attention_plan import StaticDecodePlan
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.tiling import Gpu

ANYTHING = (1 << 31) - 1


def made(case: Case, num_rows: int = 6, window: int | None = None) -> StaticDecodePlan:
    """Its buffers hold anything at first, as if another batch had been there."""
    static = StaticDecodePlan(num_rows, 70, case.heads, 16, CPU, Gpu(90, 3), window)
    for buffer in _buffers(static, num_rows):
        buffer.fill_(ANYTHING)
    return static


def _buffers(static: StaticDecodePlan, num_rows: int) -> list[Tensor]:
    plan = static.plan(num_rows)
    return [plan.tables, plan.items, plan.bounds, plan.merges]


def replay(case: Case, static: StaticDecodePlan, num_rows: int = 6) -> Tensor:
    """What a graph that was captured before `update` computes."""
    query = torch.full((num_rows, *case.query.shape[1:]), torch.nan)
    out = torch.full_like(query, torch.nan)
    captured = launches(query, case.cache, static.plan(num_rows), out)
    static.update(case.batch, num_rows)
    query[: len(case.query)] = case.query
    run(captured)
    return out.flatten(1)


@settings(max_examples=10)
@given(st.lists(st.integers(1, 1100), min_size=1, max_size=6), st.sampled_from([None, 40]))
def test_padded_rows_are_zero_and_the_others_right(contexts: list[int], window: int | None) -> None:
    """vLLM 57017, 38436: not NaN, not left as they were, though queries there are NaN."""
    case = make_case([(n - 1, 1) for n in contexts], 1, kv_heads=2, group=2, head_dim=16)
    out = replay(case, made(case, window=window))
    real = len(contexts)
    torch.testing.assert_close(out[:real].double(), dense(case, window), atol=1e-5, rtol=0)
    assert torch.equal(out[real:], torch.zeros_like(out[real:]))


def test_a_plan_forgets_the_batch_before() -> None:
    """Tables that shrink and grow, also at a block's edge (nano-vllm 258, FlashInfer 4002)."""
    static = None
    for contexts in ([1000, 500, 16], [17], [16, 33, 48, 5], [1100]):
        case = make_case([(n - 1, 1) for n in contexts], 2, kv_heads=1, group=2, head_dim=16)
        static = static or made(case)
        out = replay(case, static)
        torch.testing.assert_close(out[: len(contexts)].double(), dense(case), atol=1e-5, rtol=0)
        assert not out[len(contexts) :].any()


def test_smaller_batches_take_a_part_of_the_buffers() -> None:
    """One plan for graphs of 4 and of 6 rows; its buffers hold what the other left there."""
    first = make_case(
        [(n, 1) for n in (999, 500, 3, 70, 2, 1)], 5, kv_heads=1, group=2, head_dim=16
    )
    static = made(first)
    assert [len(part) for part in _buffers(static, 4)] < [len(p) for p in _buffers(static, 6)]
    torch.testing.assert_close(replay(first, static).double(), dense(first), atol=1e-5, rtol=0)
    case = make_case([(700, 1), (3, 1), (90, 1)], 6, kv_heads=1, group=2, head_dim=16)
    out = replay(case, static, num_rows=4)
    torch.testing.assert_close(out[:3].double(), dense(case), atol=1e-5, rtol=0)
    assert not out[3].any()


def test_nothing_moves_or_grows_between_batches() -> None:
    case = make_case([(999, 1), (3, 1)], 3, kv_heads=1, group=2, head_dim=16)
    static = made(case)
    places = [(buffer.data_ptr(), buffer.shape) for buffer in _buffers(static, 6)]
    grids = [launch.grid for launch in _launches(case, static)]
    static.update(case.batch, 6)
    assert places == [(buffer.data_ptr(), buffer.shape) for buffer in _buffers(static, 6)]
    assert grids == [launch.grid for launch in _launches(case, static)]


def _launches(case: Case, static: StaticDecodePlan) -> list[Launch]:
    query = torch.zeros(6, *case.query.shape[1:])
    return launches(query, case.cache, static.plan(6), query.clone())


@pytest.mark.parametrize(
    ("lengths", "blocks"), [([1] * 7, 1), ([1, 2], 1), ([1], 71)], ids=["rows", "prompt", "blocks"]
)
def test_what_does_not_fit_is_refused(lengths: list[int], blocks: int) -> None:
    """Rather than read or written past the end (vLLM 53658)."""
    batch = RaggedBatch(
        np.full(len(lengths), blocks * 16 - 2),
        np.array(lengths),
        np.zeros((len(lengths), blocks), np.int64),
        16,
    )
    static = StaticDecodePlan(6, 70, Heads(2, 1, 16), 16, CPU, Gpu(90, 3), None)
    with pytest.raises(ValueError, match="a plan for 6 chunks of a token and 70 blocks"):
        static.update(batch, 6)


def test_a_row_may_be_as_long_as_its_table() -> None:
    case = make_case([(70 * 16 - 1, 1)], 4, kv_heads=1, group=2, head_dim=16)
    out = replay(case, made(case))
    torch.testing.assert_close(out[:1].double(), dense(case), atol=1e-5, rtol=0)
