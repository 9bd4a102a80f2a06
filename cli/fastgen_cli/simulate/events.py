"""What happens when: the queue of a simulation's events, and its clock."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Events:
    """Invariant: `now` never goes back. Of two events at one time the one planned first comes
    first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, time: float, action: Action) -> None:
        """Plans an event; not before now."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def step(self) -> bool:
        """Lets the next event happen; False when there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True
