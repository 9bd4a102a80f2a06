"""What to send, and when: requests of a closed loop, of a rate, or of a trace."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice, repeat, takewhile
from random import Random

from fastgen_cli.bench.lengths import FromTrace, Lengths, drawer
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send, `at_seconds` after the start (a closed loop sends it when it can).

    number: its place in the run, from 0; the seed of its prompt. Lengths are tokens.
    """

    number: int
    at_seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths of the requests; max_length: most tokens of prompt and answer, None for any."""

    prompts: Lengths
    outputs: Lengths
    trace: Trace = ()
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not self.trace and FromTrace() in (self.prompts, self.outputs):
            raise UserError("lengths of a trace need --trace FILE")
        if self.max_length is not None and self.max_length < 2:
            raise UserError("--max-length: a prompt and an answer need two tokens at least")


def lengths_of(shape: Shape, seed: int) -> Iterator[tuple[int, int]]:
    """Tokens of prompt and answer, one pair after the other without end.

    The lengths of a trace come in its order, from the start again after its last.
    """
    prompts = _draws(
        shape.prompts, Random(f"{seed} prompts"), [a.prompt_tokens for a in shape.trace]
    )
    outputs = _draws(
        shape.outputs, Random(f"{seed} outputs"), [a.output_tokens for a in shape.trace]
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        if shape.max_length is None:
            yield prompt, output
        else:
            kept = min(prompt, shape.max_length - 1)
            yield kept, min(output, shape.max_length - kept)


def _draws(lengths: Lengths, rng: Random, traced: list[int]) -> Iterator[int]:
    if isinstance(lengths, FromTrace):
        return cycle(traced)
    draw = drawer(lengths, rng)
    return (draw() for _ in repeat(None))


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Arrivals at `rate` requests/s that know nothing of one another: seconds, without end."""
    rng = Random(f"{seed} arrivals")
    at_seconds = 0.0
    while True:
        at_seconds += rng.expovariate(rate)
        yield at_seconds


def closed_loop(shape: Shape, seed: int, most: int) -> Iterator[Request]:
    """Requests for clients that each wait for their answer; all are due at once."""
    return islice(_numbered(repeat(0.0), shape, seed), most)


def open_loop(
    shape: Shape,
    seed: int,
    most: int | None,
    seconds: float,
    rate: float | None,
    speed: float = 1.0,
) -> Iterator[Request]:
    """Requests at a rate, else at the trace's times, `speed` times as fast; for so many seconds."""
    times = poisson(rate, seed) if rate else (a.at / speed for a in shape.trace)
    within = takewhile(lambda request: request.at_seconds < seconds, _numbered(times, shape, seed))
    return islice(within, most)


def _numbered(times: Iterable[float], shape: Shape, seed: int) -> Iterator[Request]:
    # The times end the requests: lengths have no end.
    for number, at, (prompt, output) in zip(count(), times, lengths_of(shape, seed)):
        yield Request(number, at, prompt, output)
