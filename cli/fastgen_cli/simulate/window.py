"""A window of a trace, made small enough for slow replicas, and what is left of it."""

from dataclasses import dataclass
from math import floor
from random import Random
from typing import Final

from fastgen_cli.errors import UserError
from fastgen_cli.simulate.trace import Arrival, Trace, between
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.work import Asked, price, work_of

BUSIEST_SECONDS: Final = 60.0
USUAL_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Cut:
    """How a window is cut.

    begin_seconds, seconds: of the trace. keep: share of its requests, chosen at random by `seed`.
    shorten: what prompts and answers are divided by; then they are clipped to the longest ones.
    """

    begin_seconds: float
    seconds: float
    keep: float
    shorten: float
    longest_prompt: int
    longest_output: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """What a cut left of a window: requests and tokens before and after, and how many prompts or
    answers were clipped."""

    requests_before: int
    requests: int
    prompt_tokens_before: int
    prompt_tokens: int
    output_tokens_before: int
    output_tokens: int
    clipped: int


def cut(trace: Trace, how: Cut) -> tuple[Trace, Left]:
    """The window, its first second becoming 0. Raises UserError where nothing is left of it."""
    window = between(trace, how.begin_seconds, how.begin_seconds + how.seconds)
    rng = Random(how.seed)
    kept: list[Arrival] = []
    clipped = 0
    for arrival in window:
        if rng.random() >= how.keep:
            continue
        prompt = max(1, floor(arrival.prompt_tokens / how.shorten))
        output = max(1, floor(arrival.output_tokens / how.shorten))
        clipped += prompt > how.longest_prompt or output > how.longest_output
        kept.append(
            Arrival(arrival.at, min(prompt, how.longest_prompt), min(output, how.longest_output))
        )
    if not kept:
        end = how.begin_seconds + how.seconds
        raise UserError(
            f"no request is left of {how.begin_seconds:.0f} to {end:.0f} s of the trace: keep more "
            f"than {how.keep:.4f} of them, or choose another window"
        )
    left = Left(
        requests_before=len(window),
        requests=len(kept),
        prompt_tokens_before=sum(arrival.prompt_tokens for arrival in window),
        prompt_tokens=sum(arrival.prompt_tokens for arrival in kept),
        output_tokens_before=sum(arrival.output_tokens for arrival in window),
        output_tokens=sum(arrival.output_tokens for arrival in kept),
        clipped=clipped,
    )
    return tuple(kept), left


def busiest_load(trace: Trace, cost: StepCost, pace: Pace) -> float:
    """Engine-seconds per second that the busiest minute of a trace asks for: the load of so many
    replicas, all of them as busy as the streams' pace allows."""
    factor = price(cost, pace, USUAL_TOKENS)
    minutes: dict[int, float] = {}
    for arrival in trace:
        own = sum(work_of(Asked(arrival.prompt_tokens, 0, arrival.output_tokens), cost))
        minute = int(arrival.at // BUSIEST_SECONDS)
        minutes[minute] = minutes.get(minute, 0.0) + factor * own
    return max(minutes.values(), default=0.0) / BUSIEST_SECONDS


def led_in(trace: Trace, requests: int, every_seconds: float, pause_seconds: float) -> Trace:
    """The trace behind its own first requests, sent one by one, and a pause.

    They teach the engines how long steps take before anything is measured.
    """
    first = [
        Arrival(i * every_seconds, arrival.prompt_tokens, arrival.output_tokens)
        for i, arrival in enumerate(trace[:requests])
    ]
    begin = lead_seconds(requests, every_seconds, pause_seconds)
    later = [Arrival(begin + a.at, a.prompt_tokens, a.output_tokens) for a in trace]
    return (*first, *later)


def lead_seconds(requests: int, every_seconds: float, pause_seconds: float) -> float:
    """When the trace itself begins behind its lead."""
    return requests * every_seconds + pause_seconds
