"""Draws the burst: a live table for a terminal, a line now and then for a log."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from fastgen_api.spec import SLO
from fastgen_cli.summary import Summary
from fastgen_devcluster.demo.deployment import State


@dataclass(frozen=True, slots=True)
class Moment:
    """All that is shown at one time."""

    at_seconds: float
    phase: str
    rate: float
    """Requests/s that are being sent."""
    in_flight: int
    window: Summary
    state: State
    timeline: str
    """Ready replicas over time, a digit for every few seconds."""

    @property
    def is_quiet(self) -> bool:
        """Whether there is no load and none has just ended."""
        return self.rate == 0 and self.window.requests == 0


def targets(slo: SLO) -> tuple[str, str]:
    """The targets for TTFT and TPOT as people read them."""
    first, pace = slo.time_to_first_token, slo.time_per_output_token
    ttft = "no target"
    if first:
        ttft = f"target {first.milliseconds / 1e3:g} s"
        if first.per_prompt_token_microseconds:
            ttft += f" + {first.per_prompt_token_microseconds / 1e3:g} ms per prompt token"
    return ttft, f"target {pace.milliseconds} ms" if pace else "no target"


def seconds(value: float | None) -> str:
    """A latency in seconds, or a dash."""
    return "-" if value is None else f"{value:.2f} s"


def milliseconds(value: float | None) -> str:
    """A latency in milliseconds, or a dash."""
    return "-" if value is None else f"{1e3 * value:.0f} ms"


def percent(share: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if share is None else f"{100 * share:.0f} %"


def timeline(history: Sequence[tuple[float, int]], slot_seconds: float, width: int = 60) -> str:
    """The last replica count of each slot, oldest first; a slot without a look repeats."""
    if not history:
        return ""
    slots: dict[int, int] = {int(at // slot_seconds): count for at, count in history}
    digits, last = [], history[0][1]
    for slot in range(min(slots), max(slots) + 1):
        last = slots.get(slot, last)
        digits.append(str(min(last, 9)))
    return "".join(digits)[-width:]


def _decision(state: State) -> str:
    if state.decision is None:
        return "none yet"
    one = state.decision
    text = f"{one.replicas} ({one.rule}) {one.message}"
    return text + (f" [held back by: {', '.join(one.blockers)}]" if one.blockers else "")


def rows(moment: Moment) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are shown."""
    ttft, tpot = targets(moment.state.spec.slo)
    seen = moment.window
    goal = moment.state.spec.slo.target_percent
    return [
        ("time", f"{moment.at_seconds:.0f} s, {moment.phase}"),
        (
            "requests",
            f"{moment.rate:.1f}/s sent, {seen.requests_per_second:.1f}/s answered, "
            f"{moment.in_flight} in flight",
        ),
        (
            "TTFT p50/p95",
            f"{seconds(seen.ttft_p50_seconds)} / {seconds(seen.ttft_p95_seconds)}  ({ttft})",
        ),
        (
            "TPOT p50/p95",
            f"{milliseconds(seen.tpot_p50_seconds)} / {milliseconds(seen.tpot_p95_seconds)}"
            f"  ({tpot})",
        ),
        ("good requests", f"{percent(seen.good_share)}  (SLO {goal} %)"),
        ("replicas", f"{moment.state.ready_replicas} ready, {moment.state.wanted} wanted"),
        ("ready over time", moment.timeline),
        ("last decision", _decision(moment.state)),
    ]


def table(moment: Moment) -> Table:
    """For a terminal."""
    drawn = Table(show_header=False, box=None, padding=(0, 2, 0, 5))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column()
    for name, value in rows(moment):
        drawn.add_row(name, escape(value))
    return drawn


def line(moment: Moment) -> str:
    """For a log."""
    seen, state = moment.window, moment.state
    rule = f" | {state.decision.rule} -> {state.decision.replicas}" if state.decision else ""
    if moment.is_quiet:
        replicas = f"replicas {state.ready_replicas}/{state.wanted}"
        return f"{moment.at_seconds:4.0f} s {moment.phase}: {replicas}{rule}"
    return (
        f"{moment.at_seconds:4.0f} s {moment.phase}: sent {moment.rate:.1f}/s, "
        f"answered {seen.requests_per_second:.1f}/s, in flight {moment.in_flight}, "
        f"TTFT p50 {seconds(seen.ttft_p50_seconds)} p95 {seconds(seen.ttft_p95_seconds)}, "
        f"TPOT p50 {milliseconds(seen.tpot_p50_seconds)} "
        f"p95 {milliseconds(seen.tpot_p95_seconds)}, "
        f"good {percent(seen.good_share)}, "
        f"replicas {state.ready_replicas}/{state.wanted}{rule}"
    )
