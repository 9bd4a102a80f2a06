"""Where the demand will be when a replica that is asked for now is ready.

The slope is Theil and Sen's, the median of the slopes between all pairs of samples, which one burst
or one lull does not move. It counts only when nearly all pairs rise (Kendall's tau) and the whole
rise is more than chance makes of a steady load; it never lowers a demand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeAlias

EVERY_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 300.0
_FEWEST: Final = 12
_TAU: Final = 0.6
_TAU_LATEST: Final = 0.8
"""Of the fewest samples, which chance puts in order more often."""
_RISE: Final = 0.25
"""Of the samples' median; steady arrivals at random rarely climb by as much in good order."""
_MOST: Final = 0.5
"""Share of the present demand that may be added for what is to come."""


_Point: TypeAlias = tuple[float, float]
"""A time and a value."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A demand, in engine-seconds per second, and when it was seen. requests: that it is of, per
    second; None: not known."""

    at: float
    demand: float
    requests: float | None = None


def note(
    samples: Sequence[Sample], demand: float, now: float, requests: float | None = None
) -> tuple[Sample, ...]:
    """Takes in a sample, every ten seconds one."""
    kept = tuple(each for each in samples if now - KEPT_SECONDS < each.at <= now)
    if kept and now - kept[-1].at < EVERY_SECONDS:
        return kept
    return (*kept, Sample(now, demand, requests))


def rise_ahead(samples: Sequence[Sample], lead_seconds: float) -> float:
    """By how much the demand will have risen after so long; 0 unless it clearly rises.

    Looked for in all samples, and in the latest, which tell of a rise that has just begun; in the
    demand, and in the number of requests, which chance moves less than their lengths together.
    """
    demands = [(each.at, each.demand) for each in samples]
    slope = _clear(demands)
    counts = [(each.at, each.requests) for each in samples if each.requests is not None]
    if (all_ := sum(count for _, count in counts)) > 0:
        work = sum(each.demand for each in samples if each.requests is not None)
        slope = max(slope, _clear(counts) * work / all_)
    return min(slope * lead_seconds, _MOST * samples[-1].demand) if slope else 0.0


def _clear(points: Sequence[_Point]) -> float:
    return max(_slope(points, _TAU), _slope(points[-_FEWEST:], _TAU_LATEST))


def _slope(points: Sequence[_Point], least_tau: float) -> float:
    """Per second; 0 unless it is clear."""
    if len(points) < _FEWEST:
        return 0.0
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
        if later[0] > earlier[0]
    ]
    if not slopes:
        return 0.0
    tau = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    slope = median(slopes)
    rise = slope * (points[-1][0] - points[0][0])
    usual = median(value for _, value in points)
    return slope if tau >= least_tau and rise >= _RISE * usual else 0.0
