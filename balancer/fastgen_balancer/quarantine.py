"""Prompts that crash replicas: who was there, who is suspected, who is refused for a while.

A crash says nothing of its cause, so a prompt that was in flight is only suspected: it is sent once
more, without a retry. One that was in flight at two crashes is convicted, and refused for a while,
whichever client sends it. So the prompt that does it takes two replicas with it. Others that were
there both times are refused with it, for a minute; one that ends well anywhere is free again.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

CRASHES_TO_CONVICT: Final = 2
FIRST_SENTENCE_SECONDS: Final = 60.0
"""Each further one is twice as long: an innocent prompt loses a minute."""
LONGEST_SENTENCE_SECONDS: Final = 3600.0
SUSPECT_SECONDS: Final = 600.0
"""How long a suspicion, or what is left of a sentence, lasts."""
NOTICED_WITHIN_SECONDS: Final = 0.5
"""Of two crashes, the later may be noticed that much before the earlier: between two polls."""
UNDECIDED_SECONDS: Final = 2.0
"""After a failure, until it is known whether replicas have crashed."""
LINGER_SECONDS: Final = 5.0
"""How long a request that ended badly still counts as in flight: its crash is told later."""
SETTLE_SECONDS: Final = 1.0
"""The same after a good end: a replica whose engine has died ends its streams in good order."""
MOST_KEYS: Final = 4096
MOST_FLIGHTS: Final = 65_536

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


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
    answered_by: str | None = None
    ended_at: float | None = None
    ended_well: bool = False


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is held against a prompt; a value, each event makes the next one."""

    crashes: frozenset[tuple[str, float]] = frozenset()
    """At which it was in flight: endpoint, and when that was noticed."""
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


def blame(suspicion: Suspicion, crash: tuple[str, float], now: float) -> Suspicion:
    """After a crash at which the prompt was in flight; one crash counts once.

    After its first sentence one further crash suffices.
    """
    if crash in suspicion.crashes or now < suspicion.until:
        return suspicion
    crashes = suspicion.crashes | {crash}
    if len(crashes) < CRASHES_TO_CONVICT and suspicion.sentences == 0:
        return replace(suspicion, crashes=crashes, last_at=now)
    seconds = min(FIRST_SENTENCE_SECONDS * 2**suspicion.sentences, LONGEST_SENTENCE_SECONDS)
    return Suspicion(crashes, now, suspicion.sentences + 1, now + seconds)


def verdict_of(suspicion: Suspicion | None, now: float) -> Verdict:
    if suspicion is None or now - max(suspicion.last_at, suspicion.until) > SUSPECT_SECONDS:
        return Verdict.CLEAR
    return Verdict.CONVICTED if now < suspicion.until else Verdict.SUSPECT


class Quarantine:
    """Invariant: no more than MOST_KEYS prompts and MOST_FLIGHTS requests are kept, by their keys.

    When there are more, the oldest are forgotten.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._suspicions: OrderedDict[bytes, Suspicion] = OrderedDict()
        self._undecided: OrderedDict[bytes, float] = OrderedDict()
        self._flights: OrderedDict[str, Flight] = OrderedDict()
        self._lingering: deque[tuple[float, str]] = deque()
        self._settling: deque[tuple[float, str]] = deque()
        self._crashed_at: OrderedDict[str, float] = OrderedDict()

    @property
    def convicted(self) -> int:
        """Prompts that are refused now."""
        now = self._clock()
        return sum(now < each.until for each in self._suspicions.values())

    def verdict(self, key: bytes) -> Verdict:
        now = self._clock()
        self._forget_old(now)
        suspicion = self._suspicions.get(key)
        verdict = verdict_of(suspicion, now)
        if verdict is Verdict.CLEAR and suspicion is not None:
            del self._suspicions[key]
        if verdict is not Verdict.CONVICTED and now < self._undecided.get(key, 0.0):
            return Verdict.UNDECIDED
        return verdict

    def seconds_left(self, key: bytes) -> float:
        """Of its sentence, or until its case is decided; 0 when it may be sent."""
        suspicion = self._suspicions.get(key)
        until = max(suspicion.until if suspicion else 0.0, self._undecided.get(key, 0.0))
        return max(0.0, until - self._clock())

    def sent(self, request_id: str, key: bytes, order: tuple[str, ...]) -> None:
        """Notes that a request goes to the first of these endpoints."""
        if order:
            self._flights[request_id] = Flight(key, order, self._clock())
            _trim(self._flights, MOST_FLIGHTS)

    def answered(self, request_id: str, name: str | None) -> None:
        """Notes which endpoint's answer has begun; None: not known, so likely the first's."""
        if (flight := self._flights.get(request_id)) is not None:
            flight.answered_by = name or flight.order[0]

    def failed(self, request_id: str) -> None:
        """Notes that no replica has answered: soon it is known whether any crashed."""
        if (flight := self._flights.get(request_id)) is not None:
            self._undecided[flight.key] = self._clock() + UNDECIDED_SECONDS
            _trim(self._undecided, MOST_KEYS)

    def ended(self, request_id: str, *, well: bool) -> None:
        """Notes the end of a request; a good one clears its prompt, unless a crash follows."""
        now = self._clock()
        self._forget_old(now)
        flight = self._flights.get(request_id)
        if flight is not None and flight.ended_at is None:
            flight.ended_at, flight.ended_well = now, well
            (self._settling if well else self._lingering).append((now, request_id))

    def crashed(self, name: str) -> None:
        """Notes that an endpoint has crashed, and whose requests were there."""
        now = self._clock()
        self._forget_old(now)
        self._crashed_at.pop(name, None)
        self._crashed_at[name] = now
        _trim(self._crashed_at, MOST_KEYS)
        for flight in self._flights.values():
            for crash in crashes_of(flight, self._crashed_at):
                self._blame(flight.key, crash, now)

    def _blame(self, key: bytes, crash: tuple[str, float], now: float) -> None:
        old = self._suspicions.pop(key, None)
        if old is None or verdict_of(old, now) is Verdict.CLEAR:
            old = Suspicion()
        new = self._suspicions[key] = blame(old, crash, now)
        _trim(self._suspicions, MOST_KEYS)
        if new.sentences > old.sentences:
            self._undecided.pop(key, None)
            log.warning(
                "prompt quarantined",
                extra={
                    "prompt": key.hex(),
                    "endpoints": sorted(name for name, _ in new.crashes),
                    "seconds": round(new.until - now),
                },
            )

    def _forget_old(self, now: float) -> None:
        for queue, seconds in (
            (self._settling, SETTLE_SECONDS),
            (self._lingering, LINGER_SECONDS),
        ):
            while queue and now - queue[0][0] > seconds:
                flight = self._flights.pop(queue.popleft()[1], None)
                if flight is not None and flight.ended_well and not self._fell(flight):
                    self._suspicions.pop(flight.key, None)
                    self._undecided.pop(flight.key, None)

    def _fell(self, flight: Flight) -> bool:
        """Whether the endpoint that has answered crashed since."""
        crashed_at = self._crashed_at.get(flight.answered_by or flight.order[0])
        return crashed_at is not None and crashed_at >= flight.sent_at


def _trim(kept: OrderedDict[K, V], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
