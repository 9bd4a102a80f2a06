"""Which replica takes a request: least outstanding tokens among two choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint as far as picking goes; whoever may not be picked is not among the candidates."""

    name: str
    outstanding_tokens: int
    """What it still has to compute, as far as we know."""
    requests: int
    """What it holds, by its own word and what was sent since."""
    capacity: int
    """Requests that it takes at most."""
    fresh: bool
    """Whether its own word is young enough for `outstanding_tokens` to mean something."""

    @property
    def has_room(self) -> bool:
        return self.requests < self.capacity


@dataclass(frozen=True, slots=True)
class Request:
    """What picking needs to know of a request."""

    generates: bool
    """Whether it costs the engine; listing models does not, and goes to full replicas too."""
    tokens: int = 0
    """Estimate of what it will cost: prompt and output."""


@dataclass(frozen=True, slots=True)
class Pick:
    order: tuple[str, ...]
    """Names: the one to try, then the one for the retry."""


class Refusal(StrEnum):
    """Why a request goes nowhere."""

    NO_ENDPOINTS = "no_endpoints"
    FULL = "full"
    TOO_LARGE = "too_large"
    """Said before any picking, as the next."""
    MALFORMED = "malformed"


def pick(candidates: Sequence[Candidate], request: Request, rng: Random) -> Pick | Refusal:
    """Picks the less loaded of two random endpoints with room, the other one being the retry's.

    Two choices rather than the least of all: several balancers with the same stale word would all
    pick the same replica (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
    IEEE TPDS 2001). Tokens are compared only if both have told theirs lately, else requests are.
    """
    if not candidates:
        return Refusal.NO_ENDPOINTS
    open_ = [c for c in candidates if c.has_room or not request.generates]
    if not open_:
        return Refusal.FULL
    chosen = rng.sample(open_, min(2, len(open_)))
    if all(c.fresh for c in chosen):
        chosen.sort(key=lambda c: (c.outstanding_tokens, c.requests))
    else:
        chosen.sort(key=lambda c: c.requests)
    # With one endpoint in the list Envoy's retry takes any other, full or not: better than none.
    return Pick(tuple(c.name for c in chosen))
