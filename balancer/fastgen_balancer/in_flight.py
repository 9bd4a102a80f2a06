"""What the requests in flight tell of the demand while the metrics are missing.

As many are in flight as come in the time that one takes (Little's law), and each takes longer on a
fuller replica: a step's fixed part is about half of it when the replica is full, so requests per
replica grow as load / (1 - load / 2). How many there are at a known load says what other numbers
mean; that is learned while the metrics are there.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import Final

SMOOTH_SECONDS: Final = 30.0
"""Time constant of the means: as long as the window of the demand."""
_SLOWER: Final = 0.5


@dataclass(frozen=True, slots=True)
class InFlight:
    """each: mean requests per ready replica, those that queue included. swelling: of one request
    per replica, load / (1 - load / 2); None: not learned."""

    at: float
    each: float
    swelling: float | None = None


def note(
    before: InFlight | None, requests: int, ready: int, load: float | None, now: float
) -> InFlight | None:
    """Takes in how many there are. load: of a replica, as a share of its most; None: not known."""
    if ready < 1:
        return before
    each = requests / ready
    share = 1.0
    if before is not None:
        share = 1 - exp(-max(0.0, now - before.at) / SMOOTH_SECONDS)
        each = before.each + share * (each - before.each)
    swelling = None if before is None else before.swelling
    # A replica that has more than it can do tells nothing of what it could.
    if load is not None and 0 < load < 1 and each > 0:
        seen = load / (1 - _SLOWER * load) / each
        swelling = seen if swelling is None else swelling + share * (seen - swelling)
    return InFlight(now, each, swelling)


def load_of(known: InFlight | None) -> float | None:
    """The load of a replica, as a share of its most, that so many requests mean."""
    if known is None or known.swelling is None:
        return None
    swollen = known.each * known.swelling
    return swollen / (1 + _SLOWER * swollen)


def moved(known: InFlight | None, seconds: float) -> InFlight | None:
    """By a clock that has jumped."""
    return None if known is None else replace(known, at=known.at + seconds)
