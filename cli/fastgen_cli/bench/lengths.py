"""How long prompts and answers are: a distribution from the command line, and draws from it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from fastgen_cli.errors import UserError

EXAMPLES: Final = "512, uniform:100-900, normal:512,0.3 (mean, spread over mean), trace"
_WHOLE: Final = re.compile(r"\d+")
_UNIFORM: Final = re.compile(r"uniform:(\d+)-(\d+)")
_NORMAL: Final = re.compile(r"normal:(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always as many tokens."""

    tokens: int

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any whole number from least to most tokens, all as likely."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"uniform:{self.least}-{self.most}"


@dataclass(frozen=True, slots=True)
class Normal:
    """Tokens around a mean; cv: standard deviation over mean, 0.3 in FastGen's own benchmark
    (Holmes et al., arXiv 2401.08671, section 4)."""

    mean: float
    cv: float

    def __str__(self) -> str:
        return f"normal:{self.mean:g},{self.cv:g}"


@dataclass(frozen=True, slots=True)
class FromTrace:
    """Those of the trace's requests, in their order."""

    def __str__(self) -> str:
        return "trace"


Lengths = Fixed | Uniform | Normal | FromTrace


def parse_lengths(text: str, flag: str) -> Lengths:
    """Reads `512`, `uniform:100-900`, `normal:512,0.3` or `trace`.

    Raises UserError that names the flag.
    """
    if text == "trace":
        return FromTrace()
    if _WHOLE.fullmatch(text) and int(text) >= 1:
        return Fixed(int(text))
    if (found := _UNIFORM.fullmatch(text)) and 1 <= int(found[1]) <= int(found[2]):
        return Uniform(int(found[1]), int(found[2]))
    if (found := _NORMAL.fullmatch(text)) and float(found[1]) >= 1:
        return Normal(float(found[1]), float(found[2]))
    raise UserError(f"{flag}: {text!r} is no length; write for example {EXAMPLES}")


def drawer(lengths: Fixed | Uniform | Normal, rng: Random) -> Callable[[], int]:
    """A function that gives the next length, at least one token."""
    match lengths:
        case Fixed(tokens):
            return lambda: tokens
        case Uniform(least, most):
            return lambda: rng.randint(least, most)
        case Normal(mean, cv):
            return lambda: max(1, round(rng.gauss(mean, cv * mean)))
