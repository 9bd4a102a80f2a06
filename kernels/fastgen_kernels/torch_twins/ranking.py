"""The highest of a row of logits, in one order everywhere: falling, then by token id."""

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]


def highest_values(row: Logits, count: int) -> Logits:
    """The `count` highest logits, falling; 1 ≤ count ≤ len(row)."""
    if count < len(row):
        row = np.partition(row, len(row) - count)[len(row) - count :]
    return np.sort(row)[::-1]


def highest(row: Logits, count: int, least: float | None = None) -> TokenIds:
    """Token ids of the `count` highest logits, rising; among equals the smaller ids.

    least: the lowest of those logits, where it is known.
    """
    if count >= len(row):
        return np.arange(len(row))
    if least is None:
        least = float(np.partition(row, len(row) - count)[len(row) - count])
    tokens = np.flatnonzero(row >= least)
    surplus = len(tokens) - count
    if surplus > 0:
        equal = np.flatnonzero(row[tokens] == least)
        tokens = np.delete(tokens, equal[len(equal) - surplus :])
    return tokens
