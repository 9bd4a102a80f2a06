"""A surge as the balancers themselves see it: within seconds, where Prometheus takes a scrape more.

Requests that are anywhere, in a queue or with a replica, grow in number by those that come without
those that end. While many more come than before, as many end as came before: so the growth is what
comes now beyond that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KEPT_SECONDS: Final = 30.0
UNLIKELY: Final = 12.5
"""Negative logarithm of the probability of chance from which on something is a surge: as five
standard deviations are of many requests. Ends come by chance as well, which makes it rarer yet."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Requests anywhere, and how many came per second before that, by Prometheus."""

    at: float
    requests: int
    rate: float


def note(
    before: Sequence[Presence], requests: int, rate: float | None, now: float
) -> tuple[Presence, ...]:
    """Takes in how many there are; without a rate the last known one holds on."""
    kept = tuple(each for each in before if now - KEPT_SECONDS <= each.at < now)
    if rate is None:
        if not kept:
            return ()
        rate = kept[-1].rate
    return (*kept, Presence(now, requests, rate))


def surge(presences: Sequence[Presence]) -> float | None:
    """Requests per second that come now, where they are far more than before; else None.

    Counted from the moment from which the growth is least likely by chance. If nothing at all ended
    since, as when replicas stand still, the growth would be a Poisson count of what came before: it
    exceeds that with at most the probability of Bernstein's inequality (Boucheron, Lugosi and
    Massart, Concentration Inequalities, 2.8).
    """
    if not presences:
        return None
    *earlier, last = presences
    found: tuple[float, float] | None = None
    for each in earlier:
        seconds, growth = last.at - each.at, float(last.requests - each.requests)
        usual = each.rate * seconds
        beyond = growth - usual
        if beyond <= 0 or usual <= 0:
            continue
        surprise = beyond**2 / (2 * (usual + beyond / 3))
        if surprise > UNLIKELY and (found is None or surprise > found[0]):
            found = surprise, each.rate + growth / seconds
    return None if found is None else found[1]
