"""What is held against a prompt: a value, of which each crash and each word makes the next one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

CRASHES_TO_CONVICT: Final = 2
FIRST_SENTENCE_SECONDS: Final = 600.0
"""Each further one is twice as long. After each of them a prompt that is guilty takes one more
replica with it, and one that is innocent has been refused for nothing."""
LONGEST_SENTENCE_SECONDS: Final = 86_400.0
SUSPECT_SECONDS: Final = 600.0
"""How long a suspicion lasts."""
ON_RECORD_SECONDS: Final = 86_400.0
"""For how long after a sentence one further crash is enough."""
NOTICED_WITHIN_SECONDS: Final = 0.5
"""Of two crashes, the later may be noticed that much before the earlier: between two polls."""
SAME_CRASH_SECONDS: Final = 3.0
"""Two pods notice a crash at times that differ by less; no replica is back and gone so soon."""
MOST_FORMS: Final = 16


class Verdict(StrEnum):
    CLEAR = "clear"
    SUSPECT = "suspect"
    """May be sent, to one replica only."""
    UNDECIDED = "undecided"
    """It has just failed; in a moment it is one of the others."""
    CONVICTED = "convicted"


@dataclass(slots=True)
class Flight:
    """A request on its way, or just after a bad end."""

    key: bytes
    order: tuple[str, ...]
    """Endpoints: the one that was tried, then the one for the retry."""
    sent_at: float
    form: bytes = b""
    """Of the request with all that it asks for, beside the prompt's key."""
    on_trial: bool = False
    """Whether its prompt was suspected already when it was sent."""
    answered_by: str | None = None
    ended_at: float | None = None
    ended_well: bool = False


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is held against a prompt. Times are those of one pod's monotonic clock."""

    crashes: frozenset[tuple[str, float]] = frozenset()
    """At which it was in flight: endpoint, and when that was noticed."""
    forms: frozenset[bytes] = frozenset()
    """Of the requests that were there: what one of another form does is no proof for them."""
    last_at: float = 0.0
    sentences: int = 0
    until: float = 0.0
    """End of the last sentence."""


def crashes_of(flight: Flight, crashed_at: Mapping[str, float]) -> list[tuple[str, float]]:
    """The crashes at which a request was there, of the last crash of each endpoint.

    Envoy does not tell of its retry before that answers: it was at the second endpoint if the first
    one crashed, and not before that.
    """

    def crash(name: str) -> list[tuple[str, float]]:
        at = crashed_at.get(name)
        return [(name, at)] if at is not None and at >= flight.sent_at else []

    first, *retries = flight.order
    if flight.answered_by is not None:
        names = dict.fromkeys((first, flight.answered_by))
        return [each for name in names for each in crash(name)]
    found = crash(first)
    if found and retries:
        first_at = found[0][1] - NOTICED_WITHIN_SECONDS
        found += [(name, at) for name, at in crash(retries[0]) if at >= first_at]
    return found


def blame(
    suspicion: Suspicion, crash: tuple[str, float], now: float, form: bytes = b""
) -> Suspicion:
    """After a crash at which the prompt was in flight; one crash counts once.

    After its first sentence one further crash suffices.
    """
    if now < suspicion.until:
        return suspicion
    forms = _bounded(suspicion.forms | {form})
    crashes = _distinct((*suspicion.crashes, crash))
    if len(crashes) == len(suspicion.crashes):
        return replace(suspicion, forms=forms)
    known = replace(suspicion, crashes=crashes, forms=forms, last_at=now)
    if len(crashes) < CRASHES_TO_CONVICT and suspicion.sentences == 0:
        return known
    return _sentenced(known)


def merge(one: Suspicion, other: Suspicion) -> Suspicion:
    """What two pods hold against a prompt, together: the crashes that each has seen it at.

    Which of them is told what, and how often, makes no difference.
    """
    crashes = _distinct((*one.crashes, *other.crashes))
    both = Suspicion(
        crashes,
        _bounded(one.forms | other.forms),
        max(one.last_at, other.last_at),
        max(one.sentences, other.sentences),
        max(one.until, other.until),
    )
    if both.sentences == 0 and len(crashes) >= CRASHES_TO_CONVICT:
        return _sentenced(both)
    return both


def verdict_of(suspicion: Suspicion | None, now: float) -> Verdict:
    if suspicion is None:
        return Verdict.CLEAR
    kept = ON_RECORD_SECONDS if suspicion.sentences else SUSPECT_SECONDS
    if now - max(suspicion.last_at, suspicion.until) > kept:
        return Verdict.CLEAR
    return Verdict.CONVICTED if now < suspicion.until else Verdict.SUSPECT


def acquits(flight: Flight, suspicion: Suspicion) -> bool:
    """Whether a good end clears the prompt: of a request as it was at a crash, and after that.

    One that asks for something else, fewer tokens or no grammar, may do no harm where the other
    does: else who alternates the two would crash replicas for ever.
    """
    ended_at = flight.ended_at
    return ended_at is not None and suspicion.last_at <= ended_at and flight.form in suspicion.forms


def _sentenced(suspicion: Suspicion) -> Suspicion:
    seconds = min(FIRST_SENTENCE_SECONDS * 2**suspicion.sentences, LONGEST_SENTENCE_SECONDS)
    return replace(suspicion, sentences=suspicion.sentences + 1, until=suspicion.last_at + seconds)


def _distinct(crashes: Iterable[tuple[str, float]]) -> frozenset[tuple[str, float]]:
    """With one crash for those of an endpoint that lie close together, the earliest."""
    kept: list[tuple[str, float]] = []
    for name, at in sorted(crashes):
        if kept and kept[-1][0] == name and at - kept[-1][1] < SAME_CRASH_SECONDS:
            continue
        kept.append((name, at))
    return frozenset(kept)


def _bounded(forms: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(sorted(forms)[:MOST_FORMS]) if len(forms) > MOST_FORMS else forms
