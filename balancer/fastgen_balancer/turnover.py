"""How fast the queue moves, and what that means for those who wait or are refused."""

import math
from collections import deque
from random import Random
from typing import Final

WINDOW_SECONDS: Final = 10.0
SHORTEST_SECONDS: Final = 1.0
"""A shorter look at the queue tells no rate."""
SHORTEST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 60.0
UNKNOWN_RETRY_SECONDS: Final = 5.0
"""While the queue has not been there for long enough to say."""
JITTER: Final = 0.5
"""Largest share that is added: those refused together must not come back together."""


class Turnover:
    """Placements per second, over the last WINDOW_SECONDS in which the queue held anything.

    Invariant: `_placed` holds times of this stretch only, oldest first.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._placed: deque[float] = deque()

    def begin(self, now: float) -> None:
        """Notes that a request waits."""
        if self._since is None:
            self._since = now

    def placed(self, now: float) -> None:
        """Notes that a request has left the queue for a replica."""
        self._placed.append(now)

    def end(self) -> None:
        """Notes that the queue is empty: how fast it was says nothing of the next one."""
        self._since = None
        self._placed.clear()

    def rate(self, now: float) -> float | None:
        """Requests per second; None: not known yet."""
        if self._since is None:
            return None
        seconds = min(now - self._since, WINDOW_SECONDS)
        if seconds < SHORTEST_SECONDS:
            return None
        while self._placed and now - self._placed[0] > WINDOW_SECONDS:
            self._placed.popleft()
        return len(self._placed) / seconds


def wait_seconds(ahead: int, rate: float | None) -> float | None:
    """How long the next one in the queue will wait; None: not known."""
    if rate is None:
        return None
    return (ahead + 1) / rate if rate > 0 else math.inf


def retry_after_seconds(queued: int, rate: float | None, rng: Random) -> int:
    """When a refused request should come again: about when those that wait now are through."""
    wait = wait_seconds(queued, rate)
    seconds = UNKNOWN_RETRY_SECONDS if wait is None else wait
    seconds = min(max(seconds, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
    return math.ceil(seconds * (1 + JITTER * rng.random()))
