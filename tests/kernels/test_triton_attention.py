"""Attention's kernels, interpreted, against dense attention in float64."""

import numpy as np
import pytest
import torch
from attention_cases import Case, dense, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_attention import BOUNDS, assert_equal, ours

from fastgen_kernels.triton_kernels.attention import Scales

TILES = [(0, 1), (62, 1), (63, 1), (64, 1), (300, 1), (0, 63), (5, 65), (0, 2)]
"""Decodes and prompts one below, at and one above tiles of 64 keys."""


def check_shape(
    size: int, block_size: int, kv_heads: int, group: int, dtype: torch.dtype = torch.float32
) -> None:
    case = make_case(
        TILES, size + block_size, block_size=block_size, kv_heads=kv_heads, group=group,
        head_dim=size, dtype=dtype,
    )  # fmt: skip
    assert_equal(case, ours(case), dense(case))


@pytest.mark.parametrize(
    ("size", "block_size", "kv_heads", "group"),
    [(64, 16, 2, 1), (80, 32, 1, 8), (96, 64, 2, 3), (128, 128, 1, 4), (256, 16, 1, 2)],
)
def test_sizes_of_heads_and_blocks(size: int, block_size: int, kv_heads: int, group: int) -> None:
    """Multi-head, grouped-query and multi-query attention; heads of 80 and 96, too (vLLM 4127)."""
    check_shape(size, block_size, kv_heads, group)


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (2, 4), (1, 8)])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_all_sizes_of_heads_and_blocks(
    size: int, block_size: int, kv_heads: int, group: int, dtype: torch.dtype
) -> None:
    check_shape(size, block_size, kv_heads, group, dtype)


@pytest.mark.parametrize("group", [1, 2, 5, 7, 16, 17, 32])
def test_groups_of_any_size(group: int) -> None:
    """Also such as fill no tile, and more than a tile of 16 (sonar 1508)."""
    case = make_case([(70, 1), (3, 20)], group, kv_heads=1, group=group, head_dim=16)
    assert_equal(case, ours(case), dense(case))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", [80, 90])
def test_dtypes(dtype: torch.dtype, architecture: int) -> None:
    case = make_case(TILES, 1, block_size=64, kv_heads=1, group=4, head_dim=64, dtype=dtype)
    assert_equal(case, ours(case, architecture=architecture), dense(case))


chunk = st.tuples(st.integers(0, 140), st.one_of(st.just(1), st.integers(1, 40)))


@settings(max_examples=25)
@given(
    chunks=st.lists(chunk, min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    block_size=st.sampled_from([16, 32, 64, 128]),
    heads=st.sampled_from([(1, 1), (1, 4), (2, 3)]),
    window=st.sampled_from([None, None, 1, 50]),
    cap=st.sampled_from([None, None, 2.0]),
    multiprocessors=st.integers(1, 3),
)
def test_ragged_batches(
    chunks: list[tuple[int, int]],
    seed: int,
    block_size: int,
    heads: tuple[int, int],
    window: int | None,
    cap: float | None,
    multiprocessors: int,
) -> None:
    """Decodes and prompts, with and without a past (SGLang 22688); NaN elsewhere never shows.

    Elsewhere: in a last block past its context, in the first block of the cache as in any other
    (SGLang 32477), and in results before they are written (FlashInfer 2883).
    """
    case = make_case(
        chunks, seed, block_size=block_size, kv_heads=heads[0], group=heads[1], head_dim=16
    )
    result = ours(case, window, cap=cap, multiprocessors=multiprocessors)
    assert_equal(case, result, dense(case, window, cap=cap))


@pytest.mark.parametrize("window", [1, 16, 63, 64, 65])
def test_windows_around_tiles(window: int) -> None:
    """vLLM's and SGLang's windows were one off, at one of their ends (SGLang 32087, 34273)."""
    lengths = sorted({max(1, window + offset) for offset in (-1, 0, 1, 130)})
    chunks = [(length - 1, 1) for length in lengths] + [(lengths[-1], 20)]
    case = make_case(chunks, window, kv_heads=1, group=2, head_dim=16)
    assert_equal(case, ours(case, window), dense(case, window))


def test_blocks_before_the_window_are_never_read() -> None:
    """They may hold NaN by then (vLLM 30887), and their entries in the table anything.

    The row is long beside its window, so that most spans of the whole would be empty (vLLM 47188).
    """
    case = make_case([(999, 1), (140, 70), (80, 1)], 3, kv_heads=1, group=2, head_dim=16)
    expected = dense(case, window=20)
    for row, first in ((0, 980), (1, 121), (2, 61)):
        for block in case.batch.block_tables[row, : first // 16].tolist():
            case.cache[:, block * 16 : (block + 1) * 16] = torch.nan
        case.batch.block_tables[row, : first // 16] = (1 << 31) - 1
    assert_equal(case, ours(case, window=20, multiprocessors=9), expected)


def test_entries_past_the_context_are_never_read() -> None:
    """vLLM TurboQuant 40074: they may be anything."""
    case = make_case([(40, 1), (300, 1), (10, 9)], 4, kv_heads=1, group=2, head_dim=16)
    expected = dense(case)
    for row, context in enumerate(case.batch.contexts.tolist()):
        case.batch.block_tables[row, -(-context // 16) :] = (1 << 31) - 1
    assert_equal(case, ours(case), expected)


@pytest.mark.parametrize("window", [None, 10])
@pytest.mark.parametrize(("scale", "cap"), [(0.5, None), (None, 1.5), (0.3, 2.0)])
def test_scale_and_soft_cap(scale: float | None, cap: float | None, window: int | None) -> None:
    case = make_case([(30, 1), (131, 1), (7, 20)], 4, kv_heads=1, group=2, head_dim=16)
    assert_equal(case, ours(case, window, scale, cap), dense(case, window, scale, cap))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("factor", [1e4, -1e4])
def test_soft_cap_of_scores_beyond_exp(factor: float) -> None:
    """vLLM 56578: tanh by a ratio of exponentials is ∞ / ∞ from 88 caps on."""
    case = make_case([(30, 1), (7, 20)], 4, kv_heads=1, group=2, head_dim=16)
    result = ours(case, scale=factor, cap=50.0)
    assert_equal(case, result, dense(case, scale=factor, cap=50.0))


def test_tiny_scores_after_hidden_tiles() -> None:
    """A row's first tiles are hidden by its window, and then its scores are far below exp's range.

    Had the running maximum been taken for 0, all weights would vanish.
    """
    case = make_case([(199, 1), (130, 40)], 6, kv_heads=1, group=2, head_dim=16)
    case.query.fill_(-16.0)
    for keys in case.keys:
        keys.abs_().add_(1.0)
    for row, keys in enumerate(case.keys):
        position = np.arange(len(keys))
        slots = case.batch.block_tables[row, position // 16] * 16 + position % 16
        case.cache[0, torch.from_numpy(slots)] = keys
    assert (case.query[0, 0] @ case.keys[0][150, 0]) < -200
    for window in (None, 30):
        result, expected = ours(case, window, scale=1.0), dense(case, window, scale=1.0)
        # Such scores are rounded to 3e-5.
        torch.testing.assert_close(result.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp8_cache_with_scales(dtype: torch.dtype) -> None:
    """Keys and values have scales of their own (SGLang 18882, vLLM 42580)."""
    case = make_case([(70, 1), (3, 20)], 9, kv_heads=1, group=4, head_dim=32, dtype=dtype)
    stored = case.cache.float().to(torch.float8_e4m3fn)
    scales = Scales(key=0.5, value=3.0)
    keys = [part.float().to(torch.float8_e4m3fn).double() * scales.key for part in case.keys]
    values = [part.float().to(torch.float8_e4m3fn).double() * scales.value for part in case.values]
    expected = dense(Case(case.batch, case.query, keys, values, case.cache))
    result = ours(Case(case.batch, case.query, keys, values, stored), scales=scales)
    torch.testing.assert_close(
        result.double(), expected, atol=3 * BOUNDS[dtype] * scales.value, rtol=0
    )


def test_queries_that_are_part_of_a_larger_tensor() -> None:
    case = make_case([(70, 1), (3, 20)], 10, kv_heads=2, group=2, head_dim=16)
    wide = torch.cat([case.query, torch.full((21, 4, 16), torch.nan)], 1)
    strided = Case(case.batch, wide[:, :4], case.keys, case.values, case.cache)
    assert_equal(case, ours(strided), dense(case))
