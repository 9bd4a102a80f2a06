"""How prompts are divided into tiles, and chunks of nothing among the others."""

import torch
from attention_cases import dense, make_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention import attention
from fastgen_kernels.triton_kernels.attention_plan import make_plan, prefill_tiles
from fastgen_kernels.triton_kernels.tiling import Gpu

chunk = st.tuples(st.integers(0, 500), st.integers(1, 300))


@settings(max_examples=100)
@given(st.lists(chunk, min_size=1, max_size=12), st.integers(1, 128))
def test_every_token_of_a_prompt_is_in_one_tile(chunks: list[tuple[int, int]], most: int) -> None:
    """With its position and its request's table; tiles with most keys come first."""
    starts, lengths = zip(*chunks, strict=True)
    tables = [range((start + length) // 16 + 1) for start, length in chunks]
    batch = RaggedBatch.of(starts, lengths, tables, 16)
    tiles = prefill_tiles(batch, most)
    covered = {}
    for row, tokens, table, position in tiles.tolist():
        assert 1 <= tokens <= most
        for offset in range(tokens):
            assert row + offset not in covered
            covered[row + offset] = (table, position + offset)
    expected, row = {}, 0
    for number, (start, length) in enumerate(chunks):
        for offset in range(length):
            if length > 1:
                expected[row] = (number, start + offset)
            row += 1
    assert covered == expected
    ends = (tiles[:, 3] + tiles[:, 1]).tolist()
    assert ends == sorted(ends, reverse=True)


def test_chunks_of_nothing_leave_the_others_alone() -> None:
    """They have no rows to write to, and must not write to a neighbour's (FA 2842)."""
    case = make_case([(70, 1), (30, 1), (0, 20)], 1, kv_heads=1, group=2, head_dim=16)
    batch = case.batch
    between = RaggedBatch(
        batch.starts[[0, 1, 1, 2, 2]],
        batch.lengths[[0, 1, 1, 2, 2]] * [1, 0, 1, 0, 1],
        batch.block_tables[[0, 1, 1, 2, 2]],
        batch.block_size,
    )
    plan = make_plan(between, case.heads, torch.device("cpu"), Gpu(90, 2))
    result = attention(case.query, case.cache, plan)
    torch.testing.assert_close(result.double(), dense(case), atol=1e-5, rtol=0)
