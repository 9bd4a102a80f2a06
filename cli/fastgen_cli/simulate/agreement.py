"""Whether a simulation agrees with what really happened to the same requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fastgen_cli.percentile import percentile
from fastgen_cli.simulate.result import Moment

LEAST_TOLERANCE: Final = 0.15
"""Of the mean of the replays: two of them that happen to be alike ask for no more than this."""
MOST_STEPS: Final = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What its client, real or simulated, saw of a request. seconds; None: it never came so far.

    is_good: None where the SLO does not count it.
    """

    at: float
    ttft_seconds: float | None
    tpot_seconds: float | None
    is_good: bool | None


@dataclass(frozen=True, slots=True)
class Run:
    """One replay, real or simulated, in the same measures. timeline: from the first request on."""

    name: str
    requests: int
    good_ratio: float | None
    ttft_p50: float | None
    ttft_p90: float | None
    tpot_p50: float | None
    tpot_p90: float | None
    cold_start_seconds: float | None
    timeline: tuple[Moment, ...]


def run_of(name: str, seen: Iterable[Seen], timeline: Sequence[Moment]) -> Run:
    """Sums a run up."""
    found = list(seen)
    judged = [one.is_good for one in found if one.is_good is not None]
    ttft = sorted(one.ttft_seconds for one in found if one.ttft_seconds is not None)
    tpot = sorted(one.tpot_seconds for one in found if one.tpot_seconds is not None)
    starts = cold_starts(timeline)
    return Run(
        name=name,
        requests=len(found),
        good_ratio=sum(judged) / len(judged) if judged else None,
        ttft_p50=percentile(ttft, 50),
        ttft_p90=percentile(ttft, 90),
        tpot_p50=percentile(tpot, 50),
        tpot_p90=percentile(tpot, 90),
        cold_start_seconds=sum(starts) / len(starts) if starts else None,
        timeline=tuple(timeline),
    )


def cold_starts(timeline: Sequence[Moment]) -> tuple[float, ...]:
    """How long it took from each wish for more replicas until they were ready.

    A wish that was withdrawn or raised before counts no more.
    """
    found: list[float] = []
    wish: Moment | None = None
    before: Moment | None = None
    for moment in timeline:
        if before is not None and moment.wanted != before.wanted:
            wish = moment if moment.wanted > before.wanted else None
        if wish is not None and moment.ready >= wish.wanted:
            found.append(moment.at - wish.at)
            wish = None
        before = moment
    return tuple(found)


def wanted_at(timeline: Sequence[Moment], at: float) -> int:
    """The replicas that were asked for at a time; those of the begin before it."""
    wanted = timeline[0].wanted
    for moment in timeline:
        if moment.at > at:
            break
        wanted = moment.wanted
    return wanted


@dataclass(frozen=True, slots=True)
class Distance:
    """Between two timelines. most: replicas, at any moment. alike: the share of the time in which
    both ask for the same."""

    most: int
    alike: float


def distance(one: Sequence[Moment], other: Sequence[Moment], seconds: float) -> Distance:
    """How far apart the replicas asked for are in the first `seconds`."""
    edges = sorted({0.0, *(m.at for m in (*one, *other) if 0 <= m.at < seconds)})
    most, differing = 0, 0.0
    for begin, end in zip(edges, [*edges[1:], seconds], strict=True):
        apart = abs(wanted_at(one, begin) - wanted_at(other, begin))
        most = max(most, apart)
        differing += (end - begin) * (apart > 0)
    return Distance(most, 1 - differing / seconds if differing else 1.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """error, spread, tolerance: of the TTFT's 90th percentile, as shares of the replays' mean.
    distances: between the simulation's timeline and each replay's; between: of the replays."""

    error: float
    spread: float
    tolerance: float
    distances: tuple[Distance, ...]
    between: Distance

    @property
    def latency_holds(self) -> bool:
        return self.error <= self.tolerance

    @property
    def timeline_holds(self) -> bool:
        return all(each.most <= MOST_STEPS for each in self.distances)

    @property
    def holds(self) -> bool:
        return self.latency_holds and self.timeline_holds


def judge(first: Run, second: Run, simulated: Run, seconds: float) -> Verdict:
    """Holds a simulation against two replays of the same requests.

    Raises ValueError where a run has no first token at all.
    """
    values = (first.ttft_p90, second.ttft_p90, simulated.ttft_p90)
    if any(value is None for value in values):
        raise ValueError("a run without any first token cannot be judged")
    one, other, predicted = (value or 0.0 for value in values)
    mean = (one + other) / 2
    spread = abs(one - other) / mean
    return Verdict(
        error=abs(predicted - mean) / mean,
        spread=spread,
        tolerance=max(LEAST_TOLERANCE, spread),
        distances=tuple(
            distance(real.timeline, simulated.timeline, seconds) for real in (first, second)
        ),
        between=distance(first.timeline, second.timeline, seconds),
    )
