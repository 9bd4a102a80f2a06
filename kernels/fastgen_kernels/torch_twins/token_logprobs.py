"""Log probabilities of tokens: of the chosen one and of the likeliest, before any adjustment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fastgen_kernels.torch_twins.ranking import Logits, highest


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms. rank: 1 for the likeliest token, among equals the smaller id first.

    top: (token id, log probability) of the likeliest tokens, in the order of their ranks.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: int, vocabulary: int | None = None
) -> list[Logprobs]:
    """Of one token in each row of logits [R, V], any float dtype, and of the row's likeliest.

    Computed in float32, added up in float64. vocabulary: ids from there on are padding without a
    probability; a token among them gets -inf.
    """
    rows: Logits = logits.float().cpu().numpy()
    return [
        _row_logprobs(row, token, num_top, vocabulary or len(row))
        for row, token in zip(rows, token_ids, strict=True)
    ]


def _row_logprobs(row: Logits, token: int, num_top: int, vocabulary: int) -> Logprobs:
    known = row[:vocabulary]
    best = known.max()
    total = float(best) + float(np.log(np.exp(known - best).sum(dtype=np.float64)))
    top = highest(known, num_top) if num_top > 0 else np.arange(0)
    top = top[np.argsort(-known[top], kind="stable")]
    if token >= vocabulary:
        value, rank = -np.inf, vocabulary + 1
    else:
        value = float(known[token])
        rank = 1 + int(np.count_nonzero(known > value))
        rank += int(np.count_nonzero(known[:token] == value))
    return Logprobs(value - total, rank, tuple((int(t), float(known[t]) - total) for t in top))
