"""How decodes are divided among CTAs: nothing is lost, shares are even, buffers hold them."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_kernels.heads import Heads
from fastgen_kernels.work_list import (
    TILE,
    Rows,
    Splits,
    WorkList,
    capacity,
    num_ctas,
    plan_work,
    split_kv,
)


def rows_of(lengths: list[int], window: int | None = None) -> Rows:
    last = np.array(lengths, np.int64)
    numbers = np.arange(len(lengths))
    return Rows(numbers, numbers, np.maximum(0, last - (window or (1 << 40))), last)


def plan(
    lengths: list[int],
    kv_heads: int = 8,
    multiprocessors: int = 132,
    splits: Splits = Splits.WORK_LIST,
    window: int | None = None,
) -> WorkList:
    heads = Heads(kv_heads * 4, kv_heads, 128)
    return plan_work(rows_of(lengths, window), heads, multiprocessors, splits)


length = st.one_of(
    st.integers(0, 300),
    st.integers(0, 5000),
    st.sampled_from([TILE - 1, TILE, TILE + 1, 4 * TILE, 131_072, 1_000_000]),
)
lengths = st.lists(length, min_size=1, max_size=80)
kv_heads = st.sampled_from([1, 2, 8, 32])
multiprocessors = st.sampled_from([1, 3, 108, 132])


@settings(max_examples=150)
@given(lengths, kv_heads, multiprocessors, st.sampled_from(Splits), st.sampled_from([None, 1, 500]))
def test_every_key_is_in_one_item(
    lengths: list[int], kv_heads: int, multiprocessors: int, splits: Splits, window: int | None
) -> None:
    """Items of a pair follow one another without gap or overlap, and meet only at tiles' edges."""
    work = plan(lengths, kv_heads, multiprocessors, splits, window)
    rows = rows_of(lengths, window)
    spans = defaultdict(list)
    for query, table, head, first, last, slot in work.items.tolist():
        assert query == table
        spans[query, head].append((first, last, slot))
    assert len(spans) == len(lengths) * kv_heads
    expected_slots = []
    for (query, _), parts in sorted(spans.items()):
        parts.sort()
        assert (parts[0][0], parts[-1][1]) == (rows.first[query], rows.last[query])
        for (_, last, _), (first, _, _) in pairwise(parts):
            assert first == last
            assert first % TILE == 0
        slots = [slot for _, _, slot in parts]
        if len(parts) == 1:
            assert slots == [-1]
        else:
            assert slots == list(range(slots[0], slots[0] + len(slots)))
            expected_slots += slots
    assert sorted(expected_slots) == list(range(work.num_slots))
    merged = {(line[0], line[1]): (line[2], line[3]) for line in work.merges.tolist()}
    split = {pair: parts for pair, parts in spans.items() if len(parts) > 1}
    assert merged == {pair: (parts[0][2], len(parts)) for pair, parts in split.items()}
    assert work.bounds[0] == 0
    assert work.bounds[-1] == len(work.items)
    assert (np.diff(work.bounds) >= 0).all()


@settings(max_examples=150)
@given(lengths, kv_heads, multiprocessors)
def test_shares_are_even_and_buffers_hold_them(
    lengths: list[int], kv_heads: int, multiprocessors: int
) -> None:
    """No CTA has more than its share and a tile, whatever the lengths (vLLM 48076, SGLang 27786).

    Buffers do not depend on how long the rows are (vLLM 41656, sgl-flash-attn 46).
    """
    work = plan(lengths, kv_heads, multiprocessors)
    tiles = np.maximum(1, -(-work.items[:, 4] // TILE) - work.items[:, 3] // TILE)
    sums = np.add.reduceat(np.append(tiles, 0), work.bounds[:-1]) * (np.diff(work.bounds) > 0)
    share = max(4, -(-int(tiles.sum()) // num_ctas(multiprocessors)))
    assert sums.max() <= share
    room = capacity(len(lengths), kv_heads, multiprocessors)
    assert work.num_ctas == num_ctas(multiprocessors)
    assert len(work.items) <= room.items
    assert len(work.merges) <= room.merges
    assert work.num_slots <= room.slots


@pytest.mark.parametrize("rows", [1, 263, 264, 265, 512])
def test_batches_of_up_to_512(rows: int) -> None:
    """Also around the number of CTAs, where rows are no longer split by others' rules."""
    work = plan([1000] * rows)
    assert (work.lengths.sum(), work.num_ctas) == (1000 * rows * 8, 264)
    assert len(work.items) <= capacity(rows, 8, 132).items


def test_the_same_batch_has_the_same_plan() -> None:
    first, second = plan([5000, 3, 700]), plan([5000, 3, 700])
    assert np.array_equal(first.items, second.items)
    assert np.array_equal(first.bounds, second.bounds)


@settings(max_examples=50)
@given(length, lengths)
def test_fixed_spans_know_nothing_of_neighbours(alone: int, others: list[int]) -> None:
    """So that a result has the same bits in every batch (FA 1897, FlashInfer 1675)."""
    items = plan([alone], splits=Splits.FIXED).items
    among = plan([*others, alone], splits=Splits.FIXED).items
    ours = among[among[:, 0] == len(others)]
    assert sorted(ours[:, 2:5].tolist()) == sorted(items[:, 2:5].tolist())


@pytest.mark.parametrize(
    ("lengths", "multiprocessors", "raised", "expected"),
    [
        ([256, 1024, 4096, 8192], 108, True, [4, 8, 32, 64]),
        ([256, 1024, 4096, 8192], 108, False, [1, 2, 8, 16]),
        ([131_072], 132, True, [132]),
        ([131_072], 132, False, [16]),
        ([4096] * 132, 132, True, [1] * 132),
        ([4096] * 131, 132, True, [8] * 131),
        ([0, 512, 513], 4, True, [1, 1, 1]),
        ([1], 4, True, [4]),
    ],
)
def test_dynamic_split_kv(
    lengths: list[int], multiprocessors: int, raised: bool, expected: list[int]
) -> None:
    """The rule as its description gives it; the first line is its own example."""
    counts = split_kv(np.array(lengths), multiprocessors, 512, raised=raised)
    assert counts.tolist() == expected


def test_split_kv_has_a_cta_for_each_split() -> None:
    work = plan([256, 1024, 4096, 8192], 1, 108, Splits.SPLIT_KV)
    assert np.diff(work.bounds).tolist() == [1] * len(work.items)
    assert np.bincount(work.items[:, 0]).tolist() == [4, 8, 32, 64]
    assert work.lengths.max() == 128


def test_heads_must_share_equally() -> None:
    with pytest.raises(ValueError, match="7 query heads"):
        Heads(7, 2, 64)
