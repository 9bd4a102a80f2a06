"""Which keys each query of a batch sees: from where to where, in the order that they came."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.ragged import Integers


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """first, last: [B, Q]; a query sees the keys [first, last) of its row, none where both agree.

    num_keys: of each row.
    """

    first: Integers
    last: Integers
    num_keys: int


def causal_spans(num_rows: int, num_queries: int, num_keys: int) -> Spans:
    """What torch's `is_causal` means: query q sees the keys 0 … q; a single one sees all keys."""
    last = np.arange(1, num_queries + 1) if num_queries > 1 else np.array([num_keys])
    last = np.broadcast_to(np.minimum(last, num_keys), (num_rows, num_queries))
    return Spans(np.zeros_like(last), last, num_keys)


def ragged_spans(
    query_bounds: Tensor,
    key_bounds: Tensor,
    num_queries: int,
    num_keys: int,
    window: int | None = None,
) -> Spans:
    """Of requests side by side in one row; their last queries see their last keys.

    query_bounds, key_bounds: [R + 1] where requests begin and end; queries beyond the last are
    padding. window: keys that a query sees, its own included. Raises UnsupportedAttentionError for
    more queries than keys.
    """
    queries = query_bounds.cpu().numpy().astype(np.int64)
    keys = key_bounds.cpu().numpy().astype(np.int64)
    lengths = np.diff(queries)
    if bool((np.diff(keys)[lengths > 0] < lengths[lengths > 0]).any()):
        raise UnsupportedAttentionError(
            "a request with more queries than keys: cu_seq_lens_k counts a request's past and its "
            "new tokens"
        )
    first = np.zeros((1, num_queries), np.int64)
    last = np.zeros((1, num_queries), np.int64)
    places = np.arange(queries[0], queries[-1])
    last[0, places] = places + 1 + np.repeat(keys[1:] - queries[1:], lengths)
    first[0, places] = np.repeat(keys[:-1], lengths)
    if window is not None:
        first[0, places] = np.maximum(first[0, places], last[0, places] - window)
    return Spans(first, last, num_keys)


def masked_spans(mask: Tensor, num_keys: int) -> Spans:
    """Of a mask [B, 1, Q, K]: of bool, True for what is seen, or added to scores: 0 and -∞.

    For -∞ there may be the lowest number of the dtype. Keys beyond the mask's are not seen. Raises
    UnsupportedAttentionError for a mask with holes, of a head of its own, or with other numbers.
    """
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise UnsupportedAttentionError(
            f"an attention mask of shape {tuple(mask.shape)}: FastGen's kernels take "
            "[batch, 1, queries, keys], the same for all heads; use attn_implementation='sdpa'"
        )
    seen = _seen(mask[:, 0, :, :num_keys])
    counts = seen.sum(-1)
    first = seen.int().argmax(-1)
    last = torch.where(counts > 0, seen.shape[-1] - seen.flip(-1).int().argmax(-1), first)
    if not bool((last - first == counts).all()):
        raise UnsupportedAttentionError(
            "an attention mask with holes: FastGen's kernels take queries that see consecutive "
            "keys; use attn_implementation='sdpa'"
        )
    return Spans(first.cpu().numpy(), last.cpu().numpy(), num_keys)


def _seen(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    seen = mask == 0
    if not bool((seen | (mask <= torch.finfo(mask.dtype).min)).all()):
        raise UnsupportedAttentionError(
            "an attention mask that adds biases to scores: FastGen's kernels take masks that hide "
            "keys or do not; use attn_implementation='eager'"
        )
    return seen
