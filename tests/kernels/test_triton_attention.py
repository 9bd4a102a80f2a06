"""Attention's kernels, interpreted, against dense attention in float64.

Bounds of the largest error, for keys, values and queries of variance 1: 1e-5 in float32, 2e-3 in
float16 and 1.6e-2 in bfloat16, which round the weights and the result.
"""

import numpy as np
import pytest
import torch
from attention_cases import Case, dense, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.gpu_limits import check
from fastgen_kernels.heads import Heads
from fastgen_kernels.triton_kernels.attention import Scales, attention, launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_kernels.work_list import Splits

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TILES = [(0, 1), (62, 1), (63, 1), (64, 1), (300, 1), (0, 63), (5, 65), (0, 2)]
"""Decodes and prompts one below, at and one above tiles of 64 keys."""


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels do not write of their results and partial results is NaN."""
    monkeypatch.setattr(torch, "empty", _Empty(torch.empty))


class _Empty:
    """torch.empty, filled with NaN."""

    def __init__(self, empty: object) -> None:
        self._empty = empty

    def __call__(self, *arguments: object, **named: object) -> Tensor:
        made = self._empty(*arguments, **named)
        return made.fill_(torch.nan) if made.is_floating_point() else made


def ours(
    case: Case,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
    *,
    multiprocessors: int = 2,
    architecture: int = 90,
    splits: Splits = Splits.WORK_LIST,
) -> Tensor:
    gpu = Gpu(architecture, multiprocessors)
    plan = make_plan(case.batch, case.heads, CPU, gpu, window, splits)
    return attention(case.query, case.cache, plan, scale, cap)


def assert_equal(case: Case, result: Tensor, expected: Tensor) -> None:
    assert result.dtype == case.query.dtype
    bound = BOUNDS[case.query.dtype]
    torch.testing.assert_close(result.double(), expected, atol=bound, rtol=0)


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
    """Multi-head, grouped-query and multi-query attention."""
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
    """Decodes and prompts, with and without a past (SGLang 22688); NaN elsewhere never shows."""
    case = make_case(
        chunks, seed, block_size=block_size, kv_heads=heads[0], group=heads[1], head_dim=16
    )
    result = ours(case, window, cap=cap, multiprocessors=multiprocessors)
    assert_equal(case, result, dense(case, window, cap=cap))


def test_division_does_not_matter() -> None:
    """The same result from one span a row, from many, and by Dynamic SplitKV's rule."""
    case = make_case([(703, 1), (0, 1), (133, 1), (64, 1)], 2, kv_heads=2, group=2, head_dim=16)
    expected = dense(case)
    whole = ours(case, multiprocessors=1)
    for splits in Splits:
        for multiprocessors in (2, 9):
            result = ours(case, multiprocessors=multiprocessors, splits=splits)
            assert_equal(case, result, expected)
            torch.testing.assert_close(result, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 15, 17, 64, 65])
def test_short_rows_beside_a_long_one(length: int) -> None:
    """Shorter than a span of those that the long row is split in (SGLang 2465)."""
    case = make_case([(length - 1, 1), (699, 1)], length, kv_heads=1, group=1, head_dim=16)
    assert_equal(case, ours(case, multiprocessors=4), dense(case))


def test_fixed_spans_give_the_same_bits_in_every_batch() -> None:
    """FA 1897, FlashInfer 1675: what a request gets does not depend on who else is there."""
    case = make_case([(1100, 1), (30, 1), (700, 1)], 5, kv_heads=1, group=2, head_dim=16)
    together = ours(case, splits=Splits.FIXED, multiprocessors=2)
    for number in range(3):
        rows = slice(number, number + 1)
        batch = type(case.batch)(
            case.batch.starts[rows], case.batch.lengths[rows], case.batch.block_tables[rows], 16
        )
        alone = Case(batch, case.query[rows], [], [], case.cache)
        assert torch.equal(ours(alone, splits=Splits.FIXED, multiprocessors=5)[0], together[number])


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


def test_partial_results_and_their_weights() -> None:
    """Each is normalised, with log2 of its sum of weights, by head and split (vllm-fa 87)."""
    case = make_case([(999, 1)], 7, kv_heads=2, group=3, head_dim=16)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 3))
    decode, merge = launches(case.query, case.cache, plan, torch.empty(case.query.shape))
    decode.run()
    partial, lse = decode.arguments["partial"], decode.arguments["partial_lse"]
    assert plan.num_slots == len(plan.items) > 4
    for _, _, head, first, last, slot in plan.items.tolist():
        queries = case.query[0, head * 3 : head * 3 + 3].double()
        scores = queries @ case.keys[0][first:last, head].double().T * 16**-0.5
        expected = torch.softmax(scores, -1) @ case.values[0][first:last, head].double()
        torch.testing.assert_close(partial[slot].double(), expected, atol=1e-5, rtol=0)
        weights = torch.logsumexp(scores, -1) / np.log(2)
        torch.testing.assert_close(lse[slot].double(), weights, atol=1e-5, rtol=0)
    merge.run()
    assert_equal(case, merge.arguments["out"].flatten(1), dense(case))


def test_merging_nothing_is_nothing() -> None:
    """Spans without any weight have -∞ for its logarithm: exp(-∞ + ∞) is NaN (FlashInfer 4051)."""
    case = make_case([(999, 1)], 8, kv_heads=1, group=2, head_dim=16)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 3))
    _, merge = launches(case.query, case.cache, plan, torch.empty(case.query.shape))
    merge.arguments["partial"].zero_()
    merge.arguments["partial_lse"].fill_(-torch.inf)
    merge.run()
    assert torch.equal(merge.arguments["out"], torch.zeros(case.query.shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp8_cache_with_scales(dtype: torch.dtype) -> None:
    """Keys and values have scales of their own (SGLang 18882, vLLM 42580)."""
    case = make_case([(70, 1), (3, 20)], 9, kv_heads=1, group=4, head_dim=32, dtype=dtype)
    stored = case.cache.float().to(torch.float8_e4m3fn)
    scales = Scales(key=0.5, value=3.0)
    keys = [part.float().to(torch.float8_e4m3fn).double() * scales.key for part in case.keys]
    values = [part.float().to(torch.float8_e4m3fn).double() * scales.value for part in case.values]
    expected = dense(Case(case.batch, case.query, keys, values, case.cache))
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 2))
    result = attention(case.query, stored, plan, scales=scales)
    torch.testing.assert_close(
        result.double(), expected, atol=3 * BOUNDS[dtype] * scales.value, rtol=0
    )


def test_queries_that_are_part_of_a_larger_tensor() -> None:
    case = make_case([(70, 1), (3, 20)], 10, kv_heads=2, group=2, head_dim=16)
    wide = torch.cat([case.query, torch.full((21, 4, 16), torch.nan)], 1)
    strided = Case(case.batch, wide[:, :4], case.keys, case.values, case.cache)
    assert_equal(case, ours(strided), dense(case))


def test_heads_that_lie_apart_are_refused() -> None:
    case = make_case([(3, 1)], 10, kv_heads=2, group=2, head_dim=16)
    apart = torch.empty(1, 16, 4).transpose(1, 2)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 2))
    with pytest.raises(ValueError, match="query: heads must be side by side"):
        launches(apart, case.cache, plan, torch.empty(case.query.shape))


@pytest.mark.parametrize(
    ("heads", "block_size", "dtype", "words"),
    [
        (Heads(8, 8, 64), 48, torch.bfloat16, "a block of 48 tokens"),
        (Heads(8, 8, 264), 64, torch.bfloat16, "heads of size 264"),
        (Heads(8, 8, 20), 64, torch.bfloat16, "heads of size 20"),
        (Heads(256, 1, 64), 64, torch.bfloat16, "groups of 256"),
        (Heads(128, 1, 256), 64, torch.bfloat16, "groups of 128"),
        (Heads(8, 8, 64), 64, torch.float32, "the dtype float32: on GPUs"),
    ],
)
def test_what_no_kernel_is_made_for_is_refused(
    heads: Heads, block_size: int, dtype: torch.dtype, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check(heads, block_size, dtype)
    check(Heads(71, 1, 64), 64, torch.bfloat16)
