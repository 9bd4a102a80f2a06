"""How decodes are divided changes nothing: partial results, their weights and their merge."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_cases import Case, dense, make_case
from interpreted_attention import CPU, assert_equal, ours, run

from fastgen_kernels.triton_kernels.attention import launches
from fastgen_kernels.triton_kernels.attention_plan import AttentionPlan, make_plan
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_kernels.work_list import TILE, Splits


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


def cut(case: Case, span: int) -> AttentionPlan:
    """Of one row with one head: an item for every `span` keys."""
    context = int(case.batch.contexts[0])
    firsts = range(0, context, span)
    is_split = len(firsts) > 1
    items = [
        (0, 0, 0, first, min(first + span, context), slot if is_split else -1)
        for slot, first in enumerate(firsts)
    ]
    merges = [(0, 0, 0, len(items))] if is_split else []
    return replace(
        make_plan(case.batch, case.heads, CPU, Gpu(90, 1)),
        items=torch.tensor(items, dtype=torch.int32),
        bounds=torch.tensor([0, len(items)], dtype=torch.int32),
        merges=torch.tensor(merges, dtype=torch.int32).view(-1, 4),
        num_slots=len(items) if is_split else 0,
    )


def test_splits_of_every_size_agree() -> None:
    """Of one tile to all eighteen: a merge gets fewer parts and more than it takes at a time."""
    case = make_case([(1099, 1)], 3, kv_heads=1, group=2, head_dim=16)
    expected = dense(case)
    for span in range(TILE, 19 * TILE, TILE):
        out = torch.full(case.query.shape, torch.nan)
        run(launches(case.query, case.cache, cut(case, span), out))
        assert_equal(case, out.flatten(1), expected)


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


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_spans_of_nothing_have_no_weight() -> None:
    """Its logarithm is -∞, neither finite nor ∞ (FlashInfer 4452, FA 978), beside others' own."""
    case = make_case([(999, 1)], 8, kv_heads=1, group=2, head_dim=16)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 3))
    decode, merge = launches(case.query, case.cache, plan, torch.empty(case.query.shape))
    emptied = plan.items[2]
    missing = range(int(emptied[3]), int(emptied[4]))
    emptied[4] = emptied[3]
    decode.run()
    slot = int(emptied[5])
    assert decode.arguments["partial_lse"][slot].isneginf().all()
    assert not decode.arguments["partial"][slot].any()
    merge.run()
    kept = [number for number in range(1000) if number not in missing]
    keys, values = case.keys[0][kept], case.values[0][kept]
    fewer = make_case([(len(kept) - 1, 1)], 8, kv_heads=1, group=2, head_dim=16).batch
    expected = dense(Case(fewer, case.query, [keys], [values], case.cache))
    assert_equal(case, merge.arguments["out"].flatten(1), expected)


def test_a_batch_of_512() -> None:
    """More rows than CTAs, and none of a tile's length."""
    case = make_case([(number % 70, 1) for number in range(512)], 9, kv_heads=1, group=1)
    assert_equal(case, ours(case, multiprocessors=132), dense(case))


@pytest.mark.slow
def test_a_context_of_a_million_tokens() -> None:
    case = make_case([(999_999, 1), (100, 1)], 10, block_size=128, kv_heads=1, group=1, head_dim=16)
    assert_equal(case, ours(case, multiprocessors=132), dense(case))
