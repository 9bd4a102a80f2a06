"""Whether a request was good: how it went, against the SLO."""

from dataclasses import dataclass, field
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
class TokenTimes:
    """When the tokens of one choice came. longest_gap: seconds between two of them."""

    count: int = 0
    first: float | None = None
    last: float | None = None
    longest_gap: float = 0.0
    is_complete: bool = False

    def note(self, now: float) -> None:
        """A token has come."""
        last = self.last
        if last is None:
            self.first = now
        elif now - last > self.longest_gap:
            self.longest_gap = now - last
        self.last = now
        self.count += 1

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None before the second."""
        if self.first is None or self.last is None or self.count < 2:
            return None
        return (self.last - self.first) / (self.count - 1)


@dataclass(slots=True)
class Timings:
    """When a request's tokens came, in seconds on one clock.

    waited: time that it spent at a balancer before `arrived`. Of several choices the first token of
    any is the request's first one, and the worst choice counts for all that comes after: whoever
    reads one of them sees its pace, not the sum's.
    """

    arrived: float
    waited: float = 0.0
    prompt_tokens: int = 0
    choices: list[TokenTimes] = field(default_factory=lambda: [TokenTimes()])

    def note_token(self, now: float, index: int = 0) -> None:
        """A token of a choice has come."""
        self.choices[index].note(now)

    @property
    def output_tokens(self) -> int:
        """Of all choices."""
        return sum(times.count for times in self.choices)

    @property
    def first(self) -> float | None:
        """When the first token of any choice came."""
        return min((t.first for t in self.choices if t.first is not None), default=None)

    @property
    def last(self) -> float | None:
        """When the last token so far came."""
        return max((t.last for t in self.choices if t.last is not None), default=None)

    @property
    def longest_gap(self) -> float:
        """Between two tokens of one choice, of the choice where it was longest."""
        return max(times.longest_gap for times in self.choices)

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token as the user sees it; None before it."""
        first = self.first
        return None if first is None else self.waited + first - self.arrived

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first, of the slowest choice; None before the second."""
        known = [tpot for times in self.choices if (tpot := times.tpot_seconds) is not None]
        return max(known, default=None)

    def longest_gap_until(self, cut: float) -> float:
        """The longest gap, the silence of choices that were not complete at `cut` included."""
        open_since = [t.last for t in self.choices if t.last is not None and not t.is_complete]
        return max([self.longest_gap, *(cut - last for last in open_since)])


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
        gap = timings.longest_gap if cut is None else timings.longest_gap_until(cut)
        if gap > token_gap.max_milliseconds / 1e3:
            missed.append(Target.GAP)
    return tuple(missed)
