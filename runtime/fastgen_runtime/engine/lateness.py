"""Who waits behind all others: requests whose first token is late whatever happens.

First come first served, or by due times, an overload makes everybody late: each request waits
behind those that are late already, long after the load is what can be carried ("domino effect" of
earliest deadline first: Buttazzo, Spuri, Sensini, "Value vs. Deadline Scheduling in Overload
Conditions", RTSS 1995). So who cannot be in time lets those pass that can; a share of the turns
stays theirs, so that none waits for ever.
"""

from bisect import insort
from math import inf
from typing import Final

from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.request import Request, turn_of

TURNS: Final = 8
"""Of so many requests that are let in while late ones wait, one is late."""


class Lateness:
    """Whose turn it is between those that may be in time and those that are late.

    Invariant: `_passed` counts the former that were let in since a late one was, or none waited;
    `_next` is late and has its turn back.
    """

    def __init__(self) -> None:
        self._passed = 0
        self._next: Request | None = None

    def sort(self, waiting: list[Request], cost: StepCost, now: float) -> None:
        """Moves requests of `waiting`, which is in order, that have become late to their places."""
        late = [one for one in waiting if not one.is_late and is_hopeless(one, cost, now)]
        for one in late:
            waiting.remove(one)
            one.is_late = True
            insort(waiting, one, key=turn_of)

    def preempted(self, request: Request) -> None:
        """Notes that a request waits again: a stream that has begun lets nobody pass."""
        if request.first_token_at is not None:
            request.is_late = False

    def admitted(self, request: Request, waiting: list[Request]) -> None:
        """Notes that a request was let in, and gives the first late one its turn when it is due."""
        late = next((one for one in waiting if one.is_late), None)
        if request.is_late or request is self._next or late is None:
            self._passed, self._next = 0, None
            return
        self._passed += 1
        if self._passed >= TURNS - 1:
            self._passed, self._next = 0, late
            waiting.remove(late)
            # Nothing makes it late again.
            late.is_late, late.late_at = False, inf
            insort(waiting, late, key=turn_of)


def is_hopeless(request: Request, cost: StepCost, now: float) -> bool:
    """Whether a request's first token is late even with the next step all to itself."""
    if request.first_token_at is not None:
        return False
    start = request.num_computed
    left = len(request.token_ids) - start
    return now + cost.base + cost.chunk_seconds(start, left) > request.late_at
