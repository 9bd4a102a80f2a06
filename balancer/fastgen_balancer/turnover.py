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
"""At least, while none has left the queue."""
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
        """Requests per second, above 0; None: not known as long as none has left the queue.

        The window reaches back to the last that has left, however long ago that was.
        """
        if self._since is None or now - self._since < SHORTEST_SECONDS:
            return None
        while len(self._placed) > 1 and now - self._placed[0] > WINDOW_SECONDS:
            self._placed.popleft()
        if not self._placed:
            return None
        seconds = min(now - self._since, WINDOW_SECONDS)
        return len(self._placed) / max(seconds, now - self._placed[0])

    def still_seconds(self, now: float) -> float:
        """For how long the queue has stood with none that left it; 0: some have, or too short to
        say."""
        if self._since is None or self._placed:
            return 0.0
        seconds = now - self._since
        return seconds if seconds >= SHORTEST_SECONDS else 0.0


def wait_seconds(ahead: int, rate: float | None, still_seconds: float) -> float:
    """How long the next one in the queue will wait.

    A queue that none has left yet is taken to stand for as long again: answers that were begun
    together end together, so how many are ahead says nothing until the first has ended.
    """
    return still_seconds if rate is None else (ahead + 1) / rate


def retry_after_seconds(queued: int, rate: float | None, still_seconds: float, rng: Random) -> int:
    """When a refused request should come again: about when those that wait now are through."""
    seconds = wait_seconds(queued, rate, still_seconds)
    if rate is None:
        seconds = max(seconds, UNKNOWN_RETRY_SECONDS)
    seconds = min(max(seconds, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
    return math.ceil(seconds * (1 + JITTER * rng.random()))
