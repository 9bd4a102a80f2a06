"""The loads of one command: how many clients, or which rate, for how long."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Final

from fastgen_cli.bench.lengths import parse_lengths
from fastgen_cli.bench.requests import Request, Shape, closed_loop, open_loop
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.trace import Trace

CLIENTS: Final = "1,2,4,8,16,32"
PROMPTS: Final = "normal:512,0.3"
OUTPUTS: Final = "normal:64,0.3"
RATE_SECONDS: Final = 60.0
"""Of a load at a rate, where no limit is given."""
APART: Final = 1_000_000
"""Numbers between the first requests of two loads, so that no two of them share a prompt: the
second would find the first one's in a prefix cache."""


@dataclass(frozen=True, slots=True)
class Limits:
    """requests: most of each load; seconds: within which they are sent. None: the load's own."""

    requests: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """So many clients, each of which waits for its answer before it asks again."""

    clients: int
    limits: Limits = Limits()

    @property
    def name(self) -> str:
        return f"{self.clients} client{'s' if self.clients > 1 else ''}"

    @property
    def most_requests(self) -> int:
        """4 x clients + 32, as in FastGen's benchmark, unless time is the limit."""
        if self.limits.requests is not None:
            return self.limits.requests
        return APART if self.limits.seconds is not None else 4 * self.clients + 32

    @property
    def seconds(self) -> float:
        return inf if self.limits.seconds is None else self.limits.seconds

    def requests(self, shape: Shape, seed: int) -> Iterator[Request]:
        return closed_loop(shape, seed, self.most_requests)


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests at a rate, Poisson, or at a trace's times, `speed` times as fast: whoever has no
    answer yet does not hold up others."""

    rate: float | None
    speed: float = 1.0
    limits: Limits = Limits()

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return "trace" if self.speed == 1 else f"trace × {self.speed:g}"

    @property
    def seconds(self) -> float:
        if self.limits.seconds is not None:
            return self.limits.seconds
        return inf if self.rate is None or self.limits.requests is not None else RATE_SECONDS

    def requests(self, shape: Shape, seed: int) -> Iterator[Request]:
        most = APART if self.limits.requests is None else self.limits.requests
        return open_loop(shape, seed, most, self.seconds, self.rate, self.speed)


Load = ClosedLoad | OpenLoad


def make_loads(
    clients: str | None, rates: str | None, trace: Trace, speeds: str, limits: Limits
) -> tuple[Load, ...]:
    """The loads in their order. A trace gives the times where neither clients nor rates are given.

    Raises UserError for flags that cannot be read or do not go together.
    """
    if speeds != "1" and (not trace or clients is not None or rates is not None):
        raise UserError("--speed is that of a trace's times: give --trace, no --clients or --rate")
    if clients is not None and rates is not None:
        raise UserError("--clients is a closed loop and --rate an open one: give one of them")
    if rates is not None:
        return tuple(OpenLoad(rate, limits=limits) for rate in _numbers(rates, "--rate"))
    if trace and clients is None:
        return tuple(OpenLoad(None, speed, limits) for speed in _numbers(speeds, "--speed"))
    counts = _numbers(CLIENTS if clients is None else clients, "--clients")
    if any(count != int(count) for count in counts):
        raise UserError(f"--clients: {clients!r} are no whole numbers such as {CLIENTS}")
    return tuple(ClosedLoad(int(count), limits) for count in counts)


def make_shape(
    prompts: str | None, outputs: str | None, trace: Trace, max_length: int | None
) -> Shape:
    """A trace gives the lengths that are not given; raises UserError."""
    return Shape(
        parse_lengths(prompts or ("trace" if trace else PROMPTS), "--prompt-tokens"),
        parse_lengths(outputs or ("trace" if trace else OUTPUTS), "--output-tokens"),
        trace,
        max_length,
    )


def requests_of(load: Load, place: int, shape: Shape, seed: int) -> Iterator[Request]:
    """The requests of the load in that place of the command: the same lengths for all loads of a
    seed, prompts that no two share."""
    for request in load.requests(shape, seed):
        yield replace(request, number=place * APART + request.number)


def _numbers(text: str, flag: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(isfinite(number) and number > 0 for number in numbers):
        raise UserError(f"{flag}: {text!r} is no list of numbers above 0 such as 1,2,4")
    return numbers
