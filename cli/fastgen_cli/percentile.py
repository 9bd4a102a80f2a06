"""Percentiles by nearest rank: values that were seen, never ones between two."""

import math
from collections.abc import Sequence


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed; there must be a value."""
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """`nearest_rank`; None without values."""
    return nearest_rank(values, percent) if values else None
