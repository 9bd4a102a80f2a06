"""What a Prometheus that scrapes the simulated pods knows, and how it reckons with it."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

LOOKBACK_SECONDS: Final = 300.0
"""Prometheus' --query.lookback-delta."""
KEPT_SECONDS: Final = 660.0


Row = tuple[float, ...]


@dataclass(slots=True)
class Series:
    """Samples of several metrics of one target, scraped together; `rows` beside `times`."""

    times: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    stale_since: float | None = None
    """Since when scrapes fail or the target is gone; then it has no value at an instant."""

    def append(self, time: float, row: Row) -> None:
        self.stale_since = None
        self.times.append(time)
        self.rows.append(row)
        if time - self.times[0] > 2 * KEPT_SECONDS:
            first = bisect_right(self.times, time - KEPT_SECONDS)
            del self.times[:first], self.rows[:first]

    def end(self, time: float) -> None:
        """A scrape has failed: Prometheus writes a stale marker."""
        if self.stale_since is None:
            self.stale_since = time

    def window(self, now: float, seconds: float) -> tuple[list[float], list[Row]]:
        """Samples of a range vector: (now - seconds, now]."""
        first, last = bisect_right(self.times, now - seconds), bisect_right(self.times, now)
        return self.times[first:last], self.rows[first:last]

    def latest(self, now: float) -> tuple[float, Row] | None:
        """The time and values of an instant vector; None when there are none or stale ones."""
        if self.stale_since is not None and self.stale_since <= now:
            return None
        last = bisect_right(self.times, now) - 1
        if last < 0 or now - self.times[last] > LOOKBACK_SECONDS:
            return None
        return self.times[last], self.rows[last]

    def was_there(self, time: float) -> bool:
        """Whether an instant vector at an earlier time has a value."""
        last = bisect_right(self.times, time) - 1
        return last >= 0 and time - self.times[last] <= LOOKBACK_SECONDS


def increase(
    times: Sequence[float], values: Sequence[float], now: float, seconds: float
) -> float | None:
    """PromQL's increase() of a counter; None with fewer than two samples.

    Source: prometheus promql/functions.go, extrapolatedRate.
    """
    if len(times) < 2:
        return None
    delta = values[-1] - values[0]
    for before, after in pairwise(values):
        if after < before:
            delta += before
    sampled = times[-1] - times[0]
    between = sampled / (len(times) - 1)
    start, end = times[0] - (now - seconds), now - times[-1]
    if start >= between * 1.1:
        start = between / 2
    if delta > 0 and values[0] >= 0:
        start = min(start, sampled * values[0] / delta)
    if end >= between * 1.1:
        end = between / 2
    return delta * (sampled + start + end) / sampled


def slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """PromQL's deriv(): least squares, per second; None with fewer than two samples."""
    count = len(times)
    if count < 2:
        return None
    middle, mean = sum(times) / count, sum(values) / count
    spread = sum((time - middle) ** 2 for time in times)
    return sum((t - middle) * (v - mean) for t, v in zip(times, values, strict=True)) / spread


def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """PromQL's histogram_quantile() over cumulative `counts`, the last one of the bound infinity;
    None where PromQL says NaN: no observations."""
    total = counts[-1]
    if total <= 0:
        return None
    rank = q * total
    place = next(i for i, count in enumerate(counts) if count >= rank)
    if bounds[place] == inf:
        return bounds[-2]
    low, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    inside = counts[place] - below
    return low + (bounds[place] - low) * ((rank - below) / inside if inside else 1.0)
