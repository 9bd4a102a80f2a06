"""A queue of keys that need work: each once, one at a time, again later after a failure."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a FastGenDeployment."""

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 60.0
READY: Final = float("-inf")
"""When a key is due that waits for its turn alone."""


class WorkQueue:
    """Which keys are due, and when. Time is an argument; nothing here waits.

    Invariants: a key is waiting at most once; a key that was taken is not handed out again before
    `done` or `failed`; what is asked for meanwhile is kept for afterwards; a key whose work failed
    is handed out no earlier than `failed` has said, unless `forgive` lifts the wait. Namespaces
    take turns: for each key that is before it in its own namespace, and for itself, a key waits for
    at most one of each other.
    """

    def __init__(self, jitter: Callable[[], float] = lambda: 0.0) -> None:
        """`jitter`, from 0 to 1, shortens waits by up to half: what failed together goes apart."""
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._ready: OrderedDict[str, deque[Key]] = OrderedDict()
        """Keys that are due, by namespace; the next namespace's turn is first."""
        self._taken: set[Key] = set()
        self._asked: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._due) + len(self._taken)

    def due(self, now: float) -> int:
        """How many keys wait for somebody to take them."""
        return sum(at <= now for at in self._due.values())

    def add(self, key: Key, at: float) -> None:
        """Asks for work on a key at the given time, or earlier where that was asked before.

        After a failure not before its wait is over: a key that fails must not spin on the events
        that its own attempts make.
        """
        at = max(at, self._not_before.get(key, at))
        if key in self._taken:
            self._asked[key] = min(at, self._asked.get(key, at))
        elif at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))

    def take(self, now: float) -> Key | None:
        """The key that has been due for longest in the namespace whose turn it is."""
        self._collect(now)
        if not self._ready:
            return None
        namespace, keys = self._ready.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._ready[namespace] = keys
        del self._due[key]
        self._taken.add(key)
        return key

    def seconds_to_next(self, now: float) -> float | None:
        """Time until a key is due; None: nothing waits."""
        self._collect(now)
        if self._ready:
            return 0.0
        return self._heap[0][0] - now if self._heap else None

    def done(self, key: Key) -> None:
        """The work on a taken key succeeded."""
        self.forgive(key)
        self._release(key)

    def forgive(self, key: Key) -> None:
        """Forgets a key's failures: what failed is not what will be tried next."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failed(self, key: Key, now: float, at_least_seconds: float = 0.0) -> float:
        """The work on a taken key failed; returns the seconds after which it is due again."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16))
        longest = max(longest, 2.0 * at_least_seconds)
        delay = longest * (1.0 - 0.5 * self._jitter())
        self._asked.pop(key, None)
        self._release(key)
        self._not_before[key] = now + delay
        self.add(key, now + delay)
        return delay

    def _release(self, key: Key) -> None:
        self._taken.discard(key)
        asked = self._asked.pop(key, None)
        if asked is not None:
            self.add(key, asked)

    def _collect(self, now: float) -> None:
        """Moves what is due to its namespace's turn; an earlier time has replaced some entries."""
        while self._heap:
            at, key = self._heap[0]
            is_stale = self._due.get(key) != at
            if at > now and not is_stale:
                return
            heapq.heappop(self._heap)
            if not is_stale:
                self._due[key] = READY
                self._ready.setdefault(key[0], deque()).append(key)
