"""Where the demand will be when a replica that is asked for now is ready.

The slope is Theil and Sen's, the median of the slopes between all pairs of samples, which one burst
or one lull does not move. It counts only when nearly all pairs rise (Kendall's tau) and the whole
rise is more than chance makes of a steady load; it never lowers a demand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Sample:
    """A demand, in engine-seconds per second, and when it was seen."""

    at: float
    demand: float


def note(samples: Sequence[Sample], demand: float, now: float) -> tuple[Sample, ...]:
    """Takes in a sample, every ten seconds one."""
    kept = tuple(each for each in samples if now - KEPT_SECONDS < each.at <= now)
    if kept and now - kept[-1].at < EVERY_SECONDS:
        return kept
    return (*kept, Sample(now, demand))


def rise_ahead(samples: Sequence[Sample], lead_seconds: float) -> float:
    """By how much the demand will have risen after so long; 0 unless it clearly rises.

    Looked for in all samples, and in the latest, which tell of a rise that has just begun.
    """
    slope = max(_slope(samples, _TAU), _slope(samples[-_FEWEST:], _TAU_LATEST))
    return min(slope * lead_seconds, _MOST * samples[-1].demand) if slope else 0.0


def _slope(samples: Sequence[Sample], least_tau: float) -> float:
    """Per second; 0 unless it is clear."""
    if len(samples) < _FEWEST:
        return 0.0
    slopes = [
        (later.demand - earlier.demand) / (later.at - earlier.at)
        for index, earlier in enumerate(samples)
        for later in samples[index + 1 :]
        if later.at > earlier.at
    ]
    if not slopes:
        return 0.0
    tau = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    slope = median(slopes)
    rise = slope * (samples[-1].at - samples[0].at)
    usual = median(sample.demand for sample in samples)
    return slope if tau >= least_tau and rise >= _RISE * usual else 0.0
