"""Whether a request was good: how it went, against the SLO."""

from dataclasses import dataclass
from enum import Enum

from fastgen_api.names import Outcome, Target
from fastgen_api.spec import SLO


class End(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """By the client, before its deadline."""
    DEADLINE = "deadline"
    REFUSED = "refused"
    FAILED = "failed"
    INVALID = "invalid"
    """The client's own error."""


@dataclass(slots=True)
class Timings:
    """When a request's tokens came, in seconds on one clock.

    waited: time that it spent at a balancer before `arrived`. longest_gap: between two tokens.
    """

    arrived: float
    waited: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    first: float | None = None
    last: float | None = None
    longest_gap: float = 0.0

    def note_token(self, now: float) -> None:
        """A token has come."""
        if self.last is None:
            self.first = now
        else:
            self.longest_gap = max(self.longest_gap, now - self.last)
        self.last = now
        self.output_tokens += 1

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token as the user sees it; None before it."""
        return None if self.first is None else self.waited + self.first - self.arrived

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None before the second."""
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """missed: each target that did not hold; the outcome names the first."""

    outcome: Outcome
    missed: tuple[Target, ...] = ()


def classify(timings: Timings, end: End, ended: float, slo: SLO) -> Verdict:
    """Good or bad. A request cut short is judged by the targets that it had missed by then."""
    if end is End.REFUSED:
        return Verdict(Outcome.REFUSED)
    if end is End.FAILED:
        return Verdict(Outcome.ERROR)
    if end is End.INVALID:
        return Verdict(Outcome.EXCLUDED)
    missed = _missed(timings, None if end is End.COMPLETED else ended, slo)
    if missed:
        return Verdict(_OUTCOMES[missed[0]], missed)
    if end is End.COMPLETED:
        return Verdict(Outcome.GOOD)
    return Verdict(Outcome.ERROR if end is End.DEADLINE else Outcome.EXCLUDED)


def is_counted_by_balancer(end: End) -> bool:
    """Whether a balancer in front counts it, from what left this replica or never reached it."""
    return end in (End.REFUSED, End.FAILED)


_OUTCOMES = {
    Target.TTFT: Outcome.LATE_FIRST_TOKEN,
    Target.TPOT: Outcome.SLOW_TOKENS,
    Target.GAP: Outcome.TOKEN_GAP,
}


def _missed(timings: Timings, cut: float | None, slo: SLO) -> tuple[Target, ...]:
    """cut: when the request was cut short; what it was waiting for then was still missing."""
    missed = []
    if first := slo.time_to_first_token:
        allowed = first.milliseconds / 1e3
        allowed += first.per_prompt_token_microseconds * timings.prompt_tokens / 1e6
        ttft = timings.ttft_seconds
        if ttft is None and cut is not None:
            ttft = timings.waited + cut - timings.arrived
        if ttft is not None and ttft > allowed:
            missed.append(Target.TTFT)
    if per_token := slo.time_per_output_token:
        tpot = timings.tpot_seconds
        if tpot is not None and tpot > per_token.milliseconds / 1e3:
            missed.append(Target.TPOT)
    if token_gap := slo.token_gap:
        gap = timings.longest_gap
        if cut is not None and timings.last is not None:
            gap = max(gap, cut - timings.last)
        if gap > token_gap.max_milliseconds / 1e3:
            missed.append(Target.GAP)
    return tuple(missed)
