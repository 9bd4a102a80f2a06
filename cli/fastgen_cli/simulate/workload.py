"""Synthetic traces, each the same for the same seed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, exp, log, pi
from random import Random
from typing import Final

from fastgen_cli.simulate.trace import Arrival, Trace

Rate = Callable[[float], float]
"""Requests per second at a time."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal numbers of tokens: median, standard deviation of the logarithm, bounds."""

    prompt_median: float = 1000.0
    prompt_spread: float = 0.8
    output_median: float = 130.0
    output_spread: float = 0.9
    least: int = 4
    most_prompt: int = 8000
    most_output: int = 1000


CHAT: Final = Lengths()
"""The quartiles of the Azure conversation trace, roughly."""


def poisson(
    rate: Rate, highest: float, seconds: float, seed: int, lengths: Lengths = CHAT
) -> Trace:
    """Requests at a rate that varies, never above `highest`: a Poisson process, thinned (Lewis and
    Shedler, "Simulation of nonhomogeneous Poisson processes by thinning", 1979)."""
    rng = Random(seed)
    found = []
    now = rng.expovariate(highest)
    while now < seconds:
        if rng.random() * highest < rate(now):
            found.append(Arrival(now, *_lengths(rng, lengths)))
        now += rng.expovariate(highest)
    return tuple(found)


def _lengths(rng: Random, lengths: Lengths) -> tuple[int, int]:
    def draw(median: float, spread: float, most: int) -> int:
        return max(lengths.least, min(most, round(exp(rng.gauss(log(median), spread)))))

    return (
        draw(lengths.prompt_median, lengths.prompt_spread, lengths.most_prompt),
        draw(lengths.output_median, lengths.output_spread, lengths.most_output),
    )


def steady(rate: float) -> Rate:
    return lambda now: rate


def step(low: float, high: float, begin: float, end: float) -> Rate:
    """`high` from `begin` to `end`, else `low`: a step up and down, and a short one is a spike."""
    return lambda now: high if begin <= now < end else low


def ramp(low: float, high: float, begin: float, end: float) -> Rate:
    def rate(now: float) -> float:
        return low + (high - low) * min(1.0, max(0.0, (now - begin) / (end - begin)))

    return rate


def diurnal(low: float, high: float, period: float) -> Rate:
    """A wave from `low` to `high` and back within a period, lowest at its begin."""
    return lambda now: low + (high - low) * (1 - cos(2 * pi * now / period)) / 2
