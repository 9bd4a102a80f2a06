"""Which requests of a trace could be good at all, however many replicas there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fastgen_api.spec import SLO, TimeToFirstToken
from fastgen_balancer.scaling_policy import target_ratio
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.trace import Arrival, Trace

TARGETS: Final = ("ttft", "tpot", "gap")
WAY_OUT: Final = "Choose a longer target, or a --model-latency of shorter steps."


@dataclass(frozen=True, slots=True)
class Need:
    """The time that a request takes at least, what takes it in words, and what a target allows.

    target: as `--slo` calls it.
    """

    target: str
    what: str
    seconds: float
    allowed: float

    @property
    def is_met(self) -> bool:
        return self.seconds <= self.allowed


def hindrance(trace: Trace, profile: Profile, slo: SLO) -> str | None:
    """Why no number of replicas meets the SLO, and the way out; None: more of them might.

    A replica of its own is the best that a request can have.
    """
    needs = [tuple(_needs(arrival, profile, slo)) for arrival in trace]
    least = (target_ratio(slo) or 0.0) * len(trace)
    for target in TARGETS:
        late = [n for each in needs for n in each if n.target == target and not n.is_met]
        good = len(trace) - len(late)
        if good < least:
            return f"{_some(good, len(trace), target) if good else _none(late)}. {WAY_OUT}"
    good = sum(all(need.is_met for need in each) for each in needs)
    if good < least:
        return f"{_some(good, len(trace), 'all targets')}. {WAY_OUT}"
    return None


def _some(good: int, requests: int, targets: str) -> str:
    return f"only {good} of {requests} requests can keep {targets}, even on a replica of their own"


def _none(late: Sequence[Need]) -> str:
    """Tells of the request that comes nearest."""
    need = min(late, key=lambda each: each.seconds - each.allowed)
    took, allowed = _duration(need.seconds), _duration(need.allowed)
    return f"{need.what} takes {took}, longer than {need.target} allows ({allowed})"


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"


def _needs(arrival: Arrival, profile: Profile, slo: SLO) -> Iterator[Need]:
    prompt = arrival.prompt_tokens
    if first := slo.time_to_first_token:
        what = f"the first token of a prompt of {prompt} token{'s' if prompt > 1 else ''}"
        yield Need(
            "ttft", what, first_token_seconds(prompt, profile), allowed_seconds(first, prompt)
        )
    if arrival.output_tokens < 2:
        return
    # Contexts grow, so of an answer's steps the first after its first token is the shortest.
    step = profile.cost.base + profile.cost.chunk_seconds(prompt, 1)
    what = "a step of one token"
    if pace := slo.time_per_output_token:
        yield Need("tpot", what, step, pace.milliseconds / 1e3)
    if gap := slo.token_gap:
        yield Need("gap", what, step, gap.max_milliseconds / 1e3)


def first_token_seconds(prompt_tokens: int, profile: Profile) -> float:
    """Of a prompt that has a replica to itself, in steps that are as large as may be."""
    cost = profile.cost
    steps = -(-prompt_tokens // profile.limits.budget_tokens)
    more = (steps - 1) * cost.per_request
    return steps * cost.base + more + cost.chunk_seconds(0, prompt_tokens)


def allowed_seconds(first: TimeToFirstToken, prompt_tokens: int) -> float:
    """The longest time to the first token of a prompt that is no miss."""
    return first.milliseconds / 1e3 + first.per_prompt_token_microseconds * prompt_tokens / 1e6
