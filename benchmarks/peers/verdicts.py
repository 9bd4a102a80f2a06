"""Whether the bars are met: this engine's medians against the best peer's in the same run."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from peers.figures import Spread
from peers.settings import OPENVINO, OURS, Configuration
from peers.workloads import Name

REFERENCE_CHUNK: Final = "split256"
"""OpenVINO's configuration that the long prompt's time is compared with."""
MAIN: Final = "fixed512"
"""This engine's configuration for all but W3."""
_BAR_GAP, _AIM_GAP = 0.080, 0.050
_BAR_TTFT, _AIM_TTFT = 0.85, 0.80


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration on one workload. peak_bytes: of its processes' memory, None: not taken."""

    configuration: Configuration
    workload: Name
    spreads: Mapping[str, Spread]
    peak_bytes: int | None = None

    @property
    def is_ours(self) -> bool:
        return self.configuration.engine == OURS

    def median(self, measure: str) -> float:
        """Of a measure."""
        return self.spreads[measure].median


class Outcome(StrEnum):
    """How a measure compares with what is asked."""

    AIM = "aim met"
    BAR = "bar met"
    MISSED = "missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """measured: the ratio, or seconds, None where something is missing; against: which peer."""

    workload: str
    measure: str
    bar: str
    aim: str
    measured: float | None
    outcome: Outcome
    against: str = ""


Point = tuple[float, float]
"""Seconds to the long prompt's first token, and the streams' longest gap."""


def judge(measured: float | None, bar: float, aim: float, is_more_better: bool) -> Outcome:
    """A bar or aim that is touched is met."""
    if measured is None or math.isnan(measured):
        return Outcome.UNKNOWN
    sign = 1 if is_more_better else -1
    if sign * measured >= sign * aim:
        return Outcome.AIM
    return Outcome.BAR if sign * measured >= sign * bar else Outcome.MISSED


def best_peer(
    rows: Iterable[Row], workload: Name, measure: str, is_more_better: bool
) -> Row | None:
    """The best median of all peers and all their configurations."""
    peers = [
        row for row in rows
        if not row.is_ours and row.workload is workload and measure in row.spreads
        and not row.configuration.is_other_precision
    ]  # fmt: skip
    choose: Callable[..., Row] = max if is_more_better else min
    return choose(peers, key=lambda row: row.median(measure)) if peers else None


def our_row(rows: Iterable[Row], workload: Name, label: str = MAIN) -> Row | None:
    """One of this engine's configurations."""
    ours = (row for row in rows if row.is_ours and row.workload is workload)
    return next((row for row in ours if row.configuration.label == label), None)


def ratio(
    rows: Sequence[Row], workload: Name, measure: str, bar: float, aim: float, is_more_better: bool
) -> Verdict:
    """This engine's median over the best peer's."""
    ours, peer = our_row(rows, workload), best_peer(rows, workload, measure, is_more_better)
    sign = "≥" if is_more_better else "≤"
    measured = ours.median(measure) / peer.median(measure) if ours and peer else None
    return Verdict(
        workload, measure.removesuffix("_seconds").replace("_", " ") + " ÷ best peer's",
        f"{sign} {bar:g}", f"{sign} {aim:g}", measured,
        judge(measured, bar, aim, is_more_better), peer.configuration.name if peer else "",
    )  # fmt: skip


def point(row: Row) -> Point:
    """Where W3 puts a configuration."""
    return row.median("long_ttft_seconds"), row.median("longest_gap_seconds")


def is_beaten(peer: Point, ours: Iterable[Point]) -> bool:
    """Whether one of our points is no later and freezes streams no longer, and is better in one."""
    return any(ttft <= peer[0] and gap <= peer[1] and (ttft, gap) != peer for ttft, gap in ours)


def stalls(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of W3 that were measured: ours and the peers'."""
    chosen = [
        row for row in rows
        if row.workload is Name.STALL and "long_ttft_seconds" in row.spreads
        and not row.configuration.is_other_precision
    ]  # fmt: skip
    return [row for row in chosen if row.is_ours], [row for row in chosen if not row.is_ours]


def unbeaten(rows: Iterable[Row]) -> list[str] | None:
    """Peers' configurations that no point of ours is below; None where either side is missing."""
    ours, peers = stalls(rows)
    if not ours or not peers:
        return None
    points = [point(row) for row in ours]
    return [row.configuration.name for row in peers if not is_beaten(point(row), points)]


def least_gap(ours: Iterable[Point], reference_seconds: float, share: float) -> float | None:
    """The least gap of our points whose first token comes within this share of the reference's."""
    return min((gap for ttft, gap in ours if ttft <= share * reference_seconds), default=None)


def curve_verdict(rows: Sequence[Row]) -> Verdict:
    """W3: no peer's point is left unbeaten."""
    names = unbeaten(rows)
    outcome = Outcome.UNKNOWN if names is None else Outcome.MISSED if names else Outcome.AIM
    count = None if names is None else float(len(names))
    return Verdict(
        Name.STALL, "peers' points that none of ours is below", "0", "0", count, outcome,
        ", ".join(names or ()),
    )  # fmt: skip


def gap_verdict(rows: Sequence[Row]) -> Verdict:
    """W3: the least gap among our points whose first token comes early enough."""
    ours, peers = stalls(rows)
    points = [point(row) for row in ours]
    name = f"{OPENVINO} {REFERENCE_CHUNK}"
    reference = next((row for row in peers if row.configuration.name == name), None)
    bar = aim = None
    outcome = Outcome.UNKNOWN
    if reference is not None and points:
        seconds = reference.median("long_ttft_seconds")
        bar, aim = least_gap(points, seconds, _BAR_TTFT), least_gap(points, seconds, _AIM_TTFT)
        outcome = Outcome.MISSED
        if aim is not None and aim <= _AIM_GAP:
            outcome = Outcome.AIM
        elif bar is not None and bar <= _BAR_GAP:
            outcome = Outcome.BAR
    return Verdict(
        Name.STALL, f"least gap (s) at TTFT ≤ {_BAR_TTFT:g} × OpenVINO's at 256",
        f"≤ {_BAR_GAP:g}", f"≤ {_AIM_GAP:g} at ≤ {_AIM_TTFT:g} ×",
        aim if outcome is Outcome.AIM else bar, outcome, name if reference else "",
    )  # fmt: skip


def int8_verdict(rows: Sequence[Row]) -> Verdict:
    """Time per output token with int8 weights over that with the usual ones; an aim alone."""
    usual = our_row(rows, Name.SINGLE)
    int8 = our_row(rows, Name.SINGLE, "int8")
    name = "tpot_p50_seconds"
    measured = int8.median(name) / usual.median(name) if int8 and usual else None
    return Verdict(Name.SINGLE, "int8 tpot p50 ÷ our usual weights'", "–", "≤ 0.7", measured,
                   judge(measured, 0.7, 0.7, False), f"{OURS} {MAIN}")  # fmt: skip


def memory_verdict(rows: Sequence[Row]) -> Verdict:
    """Peak memory over OpenVINO's: the largest ratio of all workloads, our largest configuration
    against its smallest one."""
    ratios = {}
    for name in Name:
        ours, theirs = (
            [row.peak_bytes for row in rows
             if row.workload is name and row.configuration.engine == engine and row.peak_bytes
             and not row.configuration.is_other_precision]
            for engine in (OURS, OPENVINO)
        )  # fmt: skip
        if ours and theirs:
            ratios[name] = max(ours) / min(theirs)
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    measured = None if worst is None else ratios[worst]
    outcome = judge(measured, 1.0, 0.7, False)
    where = f"largest on {worst}" if worst else ""
    return Verdict("all", "peak memory ÷ OpenVINO's", "≤ 1", "≤ 0.7", measured, outcome, where)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The acceptance table."""
    return [
        ratio(rows, Name.DECODE, "output_tokens_per_second", 1.7, 2.1, True),
        ratio(rows, Name.MIXTURE, "total_tokens_per_second", 1.3, 1.5, True),
        curve_verdict(rows),
        gap_verdict(rows),
        ratio(rows, Name.SINGLE, "ttft_p50_seconds", 0.9, 0.8, False),
        ratio(rows, Name.SINGLE, "tpot_p50_seconds", 0.65, 0.5, False),
        int8_verdict(rows),
        memory_verdict(rows),
    ]
