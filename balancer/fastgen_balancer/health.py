"""Ejection of endpoints that fail or are slow, with half-open probes."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

FAILURES_TO_EJECT: Final = 3
FIRST_EJECTION_SECONDS: Final = 2.0
LONGEST_EJECTION_SECONDS: Final = 30.0


class State(StrEnum):
    CLOSED = "closed"
    """Takes requests."""
    OPEN = "open"
    """Takes none."""
    HALF_OPEN = "half_open"
    """Takes one, to see."""


@dataclass(frozen=True, slots=True)
class Health:
    """What the last requests told; a value, each event makes the next one."""

    failures: int = 0
    """In a row."""
    ejections: int = 0
    """In a row: each one lasts twice as long as the one before."""
    until: float = 0.0
    """When the ejection ends, seconds of the monotonic clock."""
    probing: bool = False
    """Whether the one request of the half-open state is on its way."""
    is_slow: bool = False
    """Whether it is out for its slowness."""

    def state(self, now: float) -> State:
        if self.ejections == 0:
            return State.CLOSED
        if now < self.until or self.probing:
            return State.OPEN
        return State.HALF_OPEN


def succeeded(health: Health) -> Health:
    """After an answer; a request from before the ejection proves as much as a probe.

    Not of a slow endpoint, which answers, only late: see `found_quick`.
    """
    if health.is_slow:
        return health
    return health if health == Health() else Health()


def failed(health: Health, now: float) -> Health:
    """After a refused connection, a crash or an error of the server."""
    if health.state(now) is State.OPEN and not health.probing:
        return health
    failures = health.failures + 1
    if failures < FAILURES_TO_EJECT and not health.probing:
        return replace(health, failures=failures)
    return _eject(replace(health, failures=failures), now)


def found_slow(health: Health, now: float) -> Health:
    """When its first bytes come far later than those of others."""
    return replace(_eject(health, now), is_slow=True)


def found_quick(health: Health) -> Health:
    """When the probe of a slow endpoint had its first byte in time."""
    return Health() if health.is_slow else health


def released(health: Health) -> Health:
    """When a probe has ended without a verdict."""
    return replace(health, probing=False)


def _eject(health: Health, now: float) -> Health:
    seconds = min(FIRST_EJECTION_SECONDS * 2**health.ejections, LONGEST_EJECTION_SECONDS)
    return replace(health, ejections=health.ejections + 1, until=now + seconds, probing=False)


def sent(health: Health, now: float) -> Health:
    """When a request goes to the endpoint."""
    if health.state(now) is State.HALF_OPEN:
        return replace(health, probing=True)
    return health
