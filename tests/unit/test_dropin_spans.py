"""Masks, bounds and shapes as spans of keys, and their arrangement as blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastgen_kernels.dropins.arrangement import arrange
from fastgen_kernels.dropins.spans import Spans, causal_spans, masked_spans, ragged_spans
from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError


def seen(spans: Spans) -> list[list[list[int]]]:
    return [
        [list(range(first, last)) for first, last in zip(*row, strict=True)]
        for row in zip(spans.first.tolist(), spans.last.tolist(), strict=True)
    ]


def test_causal_spans() -> None:
    assert seen(causal_spans(1, 3, 3)) == [[[0], [0, 1], [0, 1, 2]]]
    # A static cache is longer than the prompt that fills it first.
    assert seen(causal_spans(1, 2, 4)) == [[[0], [0, 1]]]
    # A single query comes last.
    assert seen(causal_spans(2, 1, 3)) == [[[0, 1, 2]], [[0, 1, 2]]]


def test_ragged_spans_with_padding_and_a_window() -> None:
    queries = torch.tensor([0, 2, 3, 3], dtype=torch.int32)
    keys = torch.tensor([0, 4, 6, 6], dtype=torch.int32)
    assert seen(ragged_spans(queries, keys, 5, 6)) == [[[0, 1, 2], [0, 1, 2, 3], [4, 5], [], []]]
    assert seen(ragged_spans(queries, keys, 3, 6, window=2)) == [[[1, 2], [2, 3], [4, 5]]]


def test_more_queries_than_keys_are_refused() -> None:
    with pytest.raises(UnsupportedAttentionError, match="more queries than keys"):
        ragged_spans(torch.tensor([0, 3]), torch.tensor([0, 2]), 3, 2)


def test_masks_of_numbers_and_of_truths() -> None:
    mask = torch.tensor([[[[1, 1, 0], [0, 1, 1], [0, 0, 0]]]], dtype=torch.bool)
    assert seen(masked_spans(mask, 3)) == [[[0, 1], [1, 2], []]]
    for lowest in (torch.finfo(torch.float32).min, -torch.inf):
        assert seen(masked_spans(torch.where(mask, 0.0, lowest), 3)) == [[[0, 1], [1, 2], []]]
    # A mask may be longer than the keys.
    assert seen(masked_spans(mask, 2)) == [[[0, 1], [1], []]]


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (torch.tensor([[[[True, False, True]]]]), "holes"),
        (torch.tensor([[[[0.0, -1.0]]]]), "biases"),
        (torch.ones(1, 2, 3, 3, dtype=torch.bool), "same for all heads"),
        (torch.ones(3, 3, dtype=torch.bool), r"shape \(3, 3\)"),
    ],
)
def test_masks_that_no_kernel_takes_are_refused(mask: torch.Tensor, named: str) -> None:
    with pytest.raises(UnsupportedAttentionError, match=named) as refusal:
        masked_spans(mask, mask.shape[-1])
    assert "use attn_implementation=" in str(refusal.value)


def arranged(spans: Spans, block_size: int) -> list[list[list[int]]]:
    """What each query sees once it is a chunk over blocks, by the rules of `RaggedBatch`."""
    arrangement = arrange(spans, block_size)
    batch, keys = arrangement.batch, arrangement.key_places
    num_rows, num_queries = spans.first.shape
    result: list[list[list[int]]] = [[[] for _ in range(num_queries)] for _ in range(num_rows)]
    places = iter(arrangement.queries.tolist())
    for start, length, table in zip(batch.starts, batch.lengths, batch.block_tables, strict=True):
        for position in range(start, start + length):
            begin = 0 if arrangement.window is None else max(0, position + 1 - arrangement.window)
            slots = [
                table[number // block_size] * block_size + number % block_size
                for number in range(begin, position + 1)
            ]
            row, query = divmod(next(places), num_queries)
            assert (arrangement.key_rows[slots] == row).all()
            result[row][query] = keys[slots].tolist()
    assert next(places, None) is None
    return result


@st.composite
def any_spans(draw: st.DrawFn) -> Spans:
    num_keys = draw(st.integers(1, 9))
    num_queries = draw(st.integers(1, 6))
    edge = st.integers(0, num_keys)
    rows = draw(
        st.lists(
            st.lists(st.tuples(edge, edge), min_size=num_queries, max_size=num_queries),
            min_size=1,
            max_size=3,
        )
    )
    edges = np.sort(np.array(rows, np.int64), -1)
    return Spans(edges[..., 0], edges[..., 1], num_keys)


@given(any_spans(), st.sampled_from([1, 4, 16]))
def test_whatever_consecutive_keys_queries_see_they_see_them_in_blocks(
    spans: Spans, block_size: int
) -> None:
    assert arranged(spans, block_size) == seen(spans)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 50), st.sampled_from([4, 16]))
def test_a_prompt_is_one_chunk_with_and_without_a_window(
    length: int, past: int, window: int, block_size: int
) -> None:
    last = np.arange(past + 1, past + length + 1)[None]
    for first in (np.zeros_like(last), np.maximum(0, last - window)):
        spans = Spans(first, last, past + length)
        assert arrange(spans, block_size).batch.lengths.tolist() == [length]
        assert arranged(spans, block_size) == seen(spans)


def test_padding_on_the_right_shares_copies() -> None:
    """Padded queries see the keys before them: a chunk each, over the same blocks."""
    last = np.array([[1, 2, 3, 3, 3]])
    arrangement = arrange(Spans(np.zeros_like(last), last, 5), block_size=4)
    assert arrangement.batch.lengths.tolist() == [3, 1, 1]
    assert arrangement.key_places.tolist() == [0, 1, 2, 2]


def test_queries_that_see_nothing_make_no_chunk() -> None:
    nothing = np.zeros((2, 3), np.int64)
    arrangement = arrange(Spans(nothing, nothing, 4))
    assert len(arrangement.batch.lengths) == len(arrangement.queries) == 0
