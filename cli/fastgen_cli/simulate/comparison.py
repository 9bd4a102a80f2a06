"""Scores of autoscalers side by side, the tuning of rivals, and the bars that ours is held to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fastgen_cli.simulate.monitoring import Outage
from fastgen_cli.simulate.result import Moment, Result

OWN: Final = "FastGen"
ORACLE: Final = "oracle"
MOST_REVERSALS_PER_HOUR: Final = 2.0
SHARE_OF_BEST: Final = 0.5
AFTERMATH_SECONDS: Final = 60.0
"""A turn so soon after the metrics are back is still their doing."""


@dataclass(frozen=True, slots=True)
class Score:
    """One autoscaler's result on one scenario. is_published: with the defaults of its makers."""

    scenario: str
    name: str
    setting: str
    is_published: bool
    good_ratio: float
    replica_hours: float
    reversals: int
    reversals_per_hour: float
    outage_reversals: int
    ttft_p90: float | None
    ttft_p99: float | None
    most_replicas: int
    requests: int
    refused: int
    timeline: tuple[Moment, ...] = ()


def score_of(
    scenario: str,
    name: str,
    setting: str,
    is_published: bool,
    result: Result,
    outages: Sequence[Outage],
) -> Score:
    return Score(
        scenario=scenario,
        name=name,
        setting=setting,
        is_published=is_published,
        good_ratio=result.good_ratio,
        replica_hours=result.replica_hours,
        reversals=result.reversals,
        reversals_per_hour=result.reversals_per_hour,
        outage_reversals=turns_in(result.timeline, outages),
        ttft_p90=result.ttft_p90,
        ttft_p99=result.ttft_p99,
        most_replicas=result.most_replicas,
        requests=result.requests,
        refused=sum(n for outcome, n in result.outcomes.items() if outcome == "refused"),
        timeline=result.timeline,
    )


def turns_in(timeline: Sequence[Moment], outages: Sequence[Outage]) -> int:
    """Reversals of direction while metrics are missing, or just after."""
    count = direction = 0
    for before, after in pairwise(timeline):
        if after.wanted == before.wanted:
            continue
        turn = 1 if after.wanted > before.wanted else -1
        is_during = any(o.begin <= after.at < o.end + AFTERMATH_SECONDS for o in outages)
        count += is_during and turn == -direction
        direction = turn
    return count


def tuned(scores: Sequence[Score], target: float) -> Score:
    """The setting that did best where it was tuned: the cheapest of those that met the SLO, else
    the one with the most good requests."""
    met = [score for score in scores if score.good_ratio >= target]
    if met:
        return min(met, key=lambda score: (score.replica_hours, -score.good_ratio))
    return max(scores, key=lambda score: (score.good_ratio, -score.replica_hours))


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked of ours on one trace, or on all together."""

    name: str
    scenario: str
    hit: bool
    text: str


def bars(scores: Iterable[Score], target: float, steady: Sequence[str]) -> tuple[Bar, ...]:
    """Every bar, hit or missed. scores: of the scored parts, each rival with both settings."""
    by_scenario: dict[str, list[Score]] = {}
    for score in scores:
        by_scenario.setdefault(score.scenario, []).append(score)
    found: list[Bar] = []
    excesses: dict[str, tuple[float, float]] = {}
    left_out: list[str] = []
    for scenario, group in by_scenario.items():
        own = _of(group, OWN)
        oracle = _of(group, ORACLE)
        rivals = [score for score in group if score.name not in (OWN, ORACLE)]
        found.append(_goodness(own, oracle, rivals, target))
        hours, excess = _hours(own, oracle, rivals, target)
        found.append(hours)
        if excess is not None:
            excesses[scenario] = excess
        elif not hours.hit:
            left_out.append(scenario)
        found.extend(_turns(own, scenario in steady))
    found.append(_sum(excesses, left_out))
    return tuple(found)


def _of(group: Sequence[Score], name: str) -> Score:
    return next(score for score in group if score.name == name)


def _goodness(own: Score, oracle: Score, rivals: Sequence[Score], target: float) -> Bar:
    best = max((score.good_ratio for score in rivals), default=0.0)
    wanted = min(target, best)
    if oracle.good_ratio >= target:
        wanted = target
    text = f"{own.good_ratio:.2%} good, {wanted:.2%} are asked for (best rival {best:.2%})"
    return Bar("share of good requests", own.scenario, own.good_ratio >= wanted, text)


def _hours(
    own: Score, oracle: Score, rivals: Sequence[Score], target: float
) -> tuple[Bar, tuple[float, float] | None]:
    name = "replica-hours above the oracle's"
    met = [score for score in rivals if score.good_ratio >= target]
    own_excess = own.replica_hours - oracle.replica_hours
    if own.good_ratio < target:
        text = f"{own.good_ratio:.2%} good: not at the SLO"
        hit = not met and oracle.good_ratio < target
        return Bar(name, own.scenario, hit, text), None
    if not met:
        text = f"{own_excess:+.2f} h; no rival meets the SLO"
        return Bar(name, own.scenario, True, text), None
    best = min(met, key=lambda score: score.replica_hours)
    excess = best.replica_hours - oracle.replica_hours
    text = f"{own_excess:+.2f} h, {best.name} ({best.setting}) {excess:+.2f} h"
    return Bar(name, own.scenario, own_excess <= excess, text), (own_excess, excess)


def _turns(own: Score, is_steady: bool) -> list[Bar]:
    found = []
    if is_steady:
        text = f"{own.reversals_per_hour:.1f} per hour, {MOST_REVERSALS_PER_HOUR:.0f} are allowed"
        hit = own.reversals_per_hour <= MOST_REVERSALS_PER_HOUR
        found.append(Bar("reversals on steady load", own.scenario, hit, text))
    if own.outage_reversals or "outage" in own.scenario:
        text = f"{own.outage_reversals} while metrics were missing"
        found.append(
            Bar("reversals by missing metrics", own.scenario, not own.outage_reversals, text)
        )
    return found


def _sum(excesses: Mapping[str, tuple[float, float]], left_out: Sequence[str]) -> Bar:
    """left_out: traces on which ours misses the SLO and others do not; they make it a miss."""
    own = sum(one for one, _ in excesses.values())
    best = sum(other for _, other in excesses.values())
    text = (
        f"{own:.2f} h above the oracle's on {len(excesses)} traces, the best rival of each "
        f"{best:.2f} h, of which half is allowed"
    )
    if left_out:
        text += f"; ours misses the SLO on {', '.join(left_out)}"
    hit = bool(excesses) and not left_out and own <= SHARE_OF_BEST * best
    return Bar("replica-hours, summed", "all", hit, text)
