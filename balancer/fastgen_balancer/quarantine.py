"""Prompts that crash replicas: who was there, who is suspected, who is refused for a while.

A crash says nothing of its cause, so a prompt that was in flight is only suspected: it is sent once
more, without a retry, and all its copies to the same replica. One that was in flight at two crashes
is convicted, and refused for a while, whichever client sends it, with whatever sampling and limits.
So the prompt that does it takes two replicas with it, and one more after each sentence, which is
twice as long as the one before. Others that were there both times are refused with it; one that
ends well, as it was sent before, is free again. What one pod knows it tells the others.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fastgen_balancer.suspicion import (
    Flight,
    Suspicion,
    Verdict,
    acquits,
    blame,
    crashes_of,
    merge,
    verdict_of,
)

UNDECIDED_SECONDS: Final = 2.0
"""After a failure, until it is known whether replicas have crashed."""
LINGER_SECONDS: Final = 5.0
"""How long a request that ended badly still counts as in flight: its crash is told later."""
SETTLE_SECONDS: Final = 1.0
"""The same after a good end: a replica whose engine has died ends its streams in good order."""
HEARSAY_SECONDS: Final = 60.0
"""How long another pod's word of a trial counts: an end of it may go unheard."""
NEVER: Final = float("-inf")
MOST_KEYS: Final = 4096
MOST_FLIGHTS: Final = 65_536

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that a pod knows of prompts, by its own clock, for the others to know."""

    suspicions: Mapping[bytes, Suspicion] = field(default_factory=dict)
    acquitted: Mapping[bytes, float] = field(default_factory=dict)
    """When; what was held against the prompt until then counts no more."""
    undecided: Mapping[bytes, float] = field(default_factory=dict)
    """Until when."""
    trials: Mapping[bytes, str] = field(default_factory=dict)
    """At which endpoint a suspect runs."""


class Quarantine:
    """Invariant: no more than MOST_KEYS prompts and MOST_FLIGHTS requests are kept, by their keys.

    When there are more, the oldest are forgotten. `_trials` counts the flights with `on_trial`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.on_news: Callable[[], None] = lambda: None
        """Called when there is something that other pods should know."""
        self._clock = clock
        self._suspicions: OrderedDict[bytes, Suspicion] = OrderedDict()
        self._acquitted: OrderedDict[bytes, float] = OrderedDict()
        self._undecided: OrderedDict[bytes, float] = OrderedDict()
        self._trials: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._trials_elsewhere: dict[str, tuple[float, Mapping[bytes, str]]] = {}
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

    def trial(self, key: bytes) -> str | None:
        """The endpoint at which a suspect runs now, for whichever pod: its copies go there, too."""
        if (own := self._trials.get(key)) is not None:
            return own[0]
        now = self._clock()
        for heard_at, trials in self._trials_elsewhere.values():
            if key in trials and now - heard_at <= HEARSAY_SECONDS:
                return trials[key]
        return None

    def sent(self, request_id: str, key: bytes, order: tuple[str, ...], form: bytes = b"") -> None:
        """Notes that a request goes to the first of these endpoints."""
        if not order:
            return
        now = self._clock()
        on_trial = verdict_of(self._suspicions.get(key), now) is Verdict.SUSPECT
        if (before := self._flights.get(request_id)) is not None:
            self._end_trial(before)
        self._flights[request_id] = Flight(key, order, now, form, on_trial)
        if on_trial:
            _, others = self._trials.get(key, ("", 0))
            self._trials[key] = (order[0], others + 1)
            self.on_news()
        while len(self._flights) > MOST_FLIGHTS:
            self._end_trial(self._flights.popitem(last=False)[1])

    def answered(self, request_id: str, name: str | None) -> None:
        """Notes which endpoint's answer has begun; None: not known, so likely the first's."""
        if (flight := self._flights.get(request_id)) is not None:
            flight.answered_by = name or flight.order[0]

    def failed(self, request_id: str) -> None:
        """Notes that no replica has answered, or not to the end: soon it is known why."""
        flight = self._flights.get(request_id)
        if flight is None or (flight.answered_by is not None and self._fell(flight)):
            # The crash was noticed before the end was told: there is nothing left to decide.
            return
        self._undecided[flight.key] = self._clock() + UNDECIDED_SECONDS
        _trim(self._undecided)
        self.on_news()

    def ended(self, request_id: str, *, well: bool) -> None:
        """Notes the end of a request; a good one clears its prompt, unless a crash follows."""
        now = self._clock()
        self._forget_old(now)
        flight = self._flights.get(request_id)
        if flight is not None and flight.ended_at is None:
            flight.ended_at, flight.ended_well = now, well
            self._end_trial(flight)
            (self._settling if well else self._lingering).append((now, request_id))

    def crashed(self, name: str) -> None:
        """Notes that an endpoint has crashed, and whose requests were there."""
        now = self._clock()
        self._forget_old(now)
        self._crashed_at.pop(name, None)
        self._crashed_at[name] = now
        _trim(self._crashed_at)
        for flight in self._flights.values():
            crashes = crashes_of(flight, self._crashed_at)
            for crash in crashes:
                self._blame(flight, crash, now)
            if any(name == flight.answered_by for name, _ in crashes):
                # Of a stream that broke nothing more is to come; a retry may yet be told of.
                self._undecided.pop(flight.key, None)

    def knowledge(self) -> Knowledge:
        """What others should know."""
        self._forget_old(self._clock())
        trials = {key: name for key, (name, _) in self._trials.items()}
        return Knowledge(
            dict(self._suspicions), dict(self._acquitted), dict(self._undecided), trials
        )

    def hear(self, pod: str, told: Knowledge) -> None:
        """Takes another pod's knowledge, its times by our clock."""
        now = self._clock()
        for key, at in told.acquitted.items():
            self._acquit(key, at)
        for key, heard in told.suspicions.items():
            is_over = verdict_of(heard, now) is Verdict.CLEAR
            if not is_over and self._acquitted.get(key, NEVER) < heard.last_at:
                own = self._counting(key, now)
                self._hold(key, own, merge(own, heard), now)
        for key, until in told.undecided.items():
            self._undecided[key] = max(until, self._undecided.get(key, 0.0))
        _trim(self._undecided)
        self._trials_elsewhere[pod] = (now, told.trials)

    def keep_to(self, pods: Iterable[str]) -> None:
        """Forgets the trials of pods that are gone."""
        kept = set(pods)
        for pod in self._trials_elsewhere.keys() - kept:
            del self._trials_elsewhere[pod]

    def _blame(self, flight: Flight, crash: tuple[str, float], now: float) -> None:
        if crash[1] <= self._acquitted.get(flight.key, NEVER):
            return
        old = self._counting(flight.key, now)
        new = blame(old, crash, now, flight.form)
        if self._hold(flight.key, old, new, now):
            self.on_news()

    def _counting(self, key: bytes, now: float) -> Suspicion:
        """What is held against a prompt and not too old."""
        known = self._suspicions.get(key)
        if known is None or verdict_of(known, now) is Verdict.CLEAR:
            return Suspicion()
        return known

    def _hold(self, key: bytes, old: Suspicion, new: Suspicion, now: float) -> bool:
        """Keeps a suspicion as the latest; whether it is another than before."""
        self._suspicions[key] = new
        self._suspicions.move_to_end(key)
        _trim(self._suspicions)
        if new.until > max(now, old.until):
            self._undecided.pop(key, None)
            log.warning(
                "prompt quarantined",
                extra={
                    "prompt": key.hex(),
                    "endpoints": sorted(name for name, _ in new.crashes),
                    "seconds": round(new.until - now),
                },
            )
        return new != old

    def _acquit(self, key: bytes, at: float) -> None:
        """Nothing that was held against a prompt up to then counts any more."""
        if self._acquitted.get(key, NEVER) >= at:
            return
        self._acquitted[key] = at
        self._acquitted.move_to_end(key)
        _trim(self._acquitted)
        if (suspicion := self._suspicions.get(key)) is not None and suspicion.last_at <= at:
            del self._suspicions[key]

    def _forget_old(self, now: float) -> None:
        for queue, seconds in (
            (self._settling, SETTLE_SECONDS),
            (self._lingering, LINGER_SECONDS),
        ):
            while queue and now - queue[0][0] > seconds:
                flight = self._flights.pop(queue.popleft()[1], None)
                if flight is not None and flight.ended_well and not self._fell(flight):
                    self._undecided.pop(flight.key, None)
                    suspicion = self._suspicions.get(flight.key)
                    if suspicion is not None and acquits(flight, suspicion):
                        assert flight.ended_at is not None
                        self._acquit(flight.key, flight.ended_at)
                        self.on_news()

    def _fell(self, flight: Flight) -> bool:
        """Whether the endpoint that has answered crashed since."""
        crashed_at = self._crashed_at.get(flight.answered_by or flight.order[0])
        return crashed_at is not None and crashed_at >= flight.sent_at

    def _end_trial(self, flight: Flight) -> None:
        if not flight.on_trial:
            return
        flight.on_trial = False
        name, number = self._trials.pop(flight.key)
        if number > 1:
            self._trials[flight.key] = (name, number - 1)
        self.on_news()


def _trim(kept: OrderedDict[K, V]) -> None:
    while len(kept) > MOST_KEYS:
        kept.popitem(last=False)
