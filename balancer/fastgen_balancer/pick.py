"""Which replica takes a request: one that may hold its prompt's beginning, else the less loaded."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Final

LOAD_BOUND: Final = 1.25
"""Share of the average load up to which affinity counts: 1 + ε of the bounded loads."""
HOMES: Final = 2
"""Endpoints that affinity tries before load alone decides."""
_WORD: Final = 2**64 - 1


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
    weight: float = 1.0
    """Share of a full endpoint's load that it should get, in (0, 1]: less while it is new."""
    answers: bool = True
    """Whether it has answered when it was asked last for its load."""

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
    affinity: int | None = None
    """64 bits, the same for prompts that begin alike; None: any endpoint is as good."""
    deadline: float | None = None
    """When its client gives up, seconds of the monotonic clock; None: not told."""
    body_bytes: int = 0
    """What it occupies in the proxy while it waits."""
    witnessed: bool = True
    """Whether our own Envoy tells what becomes of it."""


@dataclass(frozen=True, slots=True)
class Pick:
    order: tuple[str, ...]
    """Names: the one to try, then the one for the retry."""


class Refusal(StrEnum):
    """Why a request goes nowhere."""

    NO_ENDPOINTS = "no_endpoints"
    FULL = "full"
    DEADLINE = "deadline"
    """It would wait for longer than its client does."""
    EXPIRED = "expired"
    """It has waited for as long as its client does."""
    TOO_LARGE = "too_large"
    """Said before any picking, as the next."""
    MALFORMED = "malformed"
    QUARANTINED = "quarantined"
    """The prompt was there when replicas crashed."""
    UNDECIDED = "undecided"
    """It has just failed, and soon it is known whether replicas crashed."""
    UNKNOWN_MODEL = "unknown_model"
    """Said where a balancer serves several models, as the next."""
    MISSING_MODEL = "missing_model"


def pick(candidates: Sequence[Candidate], request: Request, rng: Random) -> Pick | Refusal:
    """Picks the home of the prompt if its load allows, else the less loaded of two endpoints.

    Homes come of rendezvous hashing (Thaler, Ravishankar, "Using Name-Based Mappings to Increase
    Hit Rates", IEEE/ACM ToN 1998) under the load bound of Mirrokni, Thorup, Zadimoghaddam,
    "Consistent Hashing with Bounded Loads", SODA 2018: an endpoint takes no request by affinity
    while it holds more than LOAD_BOUND times the average and one request. An index of what each
    replica was sent would know prefixes more exactly, but several pickers would each know a part
    of it, and a new one nothing; hashing gives the same home in all of them, keeps it over
    restarts, and moves one in n keys when one of n endpoints comes or goes.

    Beyond the homes, two choices rather than the least of all: several pickers with the same stale
    word would all pick the same replica (Mitzenmacher, "The Power of Two Choices in Randomized
    Load Balancing", IEEE TPDS 2001).
    """
    if not candidates:
        return Refusal.NO_ENDPOINTS
    open_ = [c for c in candidates if c.requests < c.capacity or not request.generates]
    if not open_:
        return Refusal.FULL
    # Who has just failed to answer may be gone: nobody is sent there while there are others.
    open_ = [c for c in open_ if c.answers] or open_
    affinity = request.affinity if request.generates else None
    preferred = [] if affinity is None else homes(open_, affinity)
    home = next((c for c in preferred if is_within_bound(c, open_, request)), None)
    if home is not None:
        chosen = [home]
    else:
        # A home beyond the bound is no choice either: it has more than its share.
        chosen = two_choices([c for c in open_ if c not in preferred] or open_, request, rng)
    if len(chosen) == 1:
        rest = [c for c in open_ if c is not chosen[0]]
        chosen += two_choices(rest, request, rng)[:1]
    # With one endpoint in the list Envoy's retry takes any other, full or not: better than none.
    return Pick(tuple(c.name for c in chosen))


def two_choices(candidates: Sequence[Candidate], request: Request, rng: Random) -> list[Candidate]:
    """At most two of them at random, the less loaded one first.

    Tokens are compared only if both have told theirs lately, else requests are.
    """
    chosen = rng.sample(candidates, min(2, len(candidates)))
    if all(c.fresh for c in chosen):
        # With the request itself: an idle endpoint of little weight is not idle for free.
        chosen.sort(key=lambda c: ((c.outstanding_tokens + request.tokens) / c.weight, c.requests))
    else:
        chosen.sort(key=lambda c: (c.requests + 1) / c.weight)
    return chosen


def homes(candidates: Sequence[Candidate], affinity: int) -> list[Candidate]:
    """The endpoints with the highest scores for this key, best first, HOMES at most."""
    scores = _scores(affinity, tuple([c.name for c in candidates]))
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:HOMES]
    return [candidates[i] for i in best]


def is_within_bound(home: Candidate, candidates: Sequence[Candidate], request: Request) -> bool:
    """Whether a candidate's load is at most LOAD_BOUND times its share of all, and one request.

    That one is the rounding up of the method's capacities, and worth it: at home the prompt waits
    behind so many tokens more, elsewhere it is computed anew. Tokens count, among those whose word
    is fresh; of a stale home requests count, among all and without the one: a replica that tells
    nothing must not make the others' tokens meaningless.
    """
    if home.fresh:
        peers = [c for c in candidates if c.fresh]
        load: float = home.outstanding_tokens - request.tokens
        total = sum([c.outstanding_tokens for c in peers]) + request.tokens
    else:
        peers = list(candidates)
        load = home.requests
        total = sum([c.requests for c in peers]) + 1
    share = home.weight / sum([c.weight for c in peers])
    return load <= LOAD_BOUND * share * total


def _scores(affinity: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """For each name a hash of it and the key, uniform over 64 bits: SplitMix64's finalizer.

    It runs for each endpoint at each pick, so all are computed at once, in one number with a lane
    of 128 bits for each: there the product of two words has room.
    """
    lanes = _lanes(names)
    mixed = lanes.seeds ^ (affinity * lanes.ones)
    mixed = ((mixed ^ ((mixed >> 30) & lanes.words)) * 0xBF58476D1CE4E5B9) & lanes.words
    mixed = ((mixed ^ ((mixed >> 27) & lanes.words)) * 0x94D049BB133111EB) & lanes.words
    mixed ^= (mixed >> 31) & lanes.words
    return struct.unpack(f"<{2 * len(names)}Q", mixed.to_bytes(16 * len(names), "little"))[::2]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Per name a lane of 128 bits: its seed, a one, and a word of ones."""

    seeds: int
    ones: int
    words: int


@lru_cache(maxsize=16)
def _lanes(names: tuple[str, ...]) -> _Lanes:
    ones = int.from_bytes((b"\x01" + bytes(15)) * len(names), "little")
    seeds = int.from_bytes(b"".join([_seed(name) for name in names]), "little")
    return _Lanes(seeds, ones, ones * _WORD)


@lru_cache(maxsize=4096)
def _seed(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8).digest()[::-1] + bytes(8)
