"""Which requests' deadlines have passed."""

import heapq
from collections.abc import Mapping

from fastgen_runtime.engine.request import Request


class Deadlines:
    """A heap of ids: a request that has ended is not kept until its deadline.

    What has ended is dropped lazily, but there are never more entries than twice as many as there
    were requests at the last `add`.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        # The arrival tells requests apart that had the same id one after the other.
        self._heap: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, request: Request, requests: Mapping[str, Request]) -> None:
        """Notes a deadline; `requests`: all that have not ended, this one, too."""
        heapq.heappush(self._heap, (deadline, request.arrival, request.request_id))
        if len(self._heap) > 2 * len(requests):
            self._heap = [entry for entry in self._heap if _find(entry, requests)]
            heapq.heapify(self._heap)

    def pop(self, now: float, requests: Mapping[str, Request]) -> list[Request]:
        """Those of `requests` whose deadlines have passed, the first first; each is told once."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            request = _find(heapq.heappop(self._heap), requests)
            if request is not None:
                passed.append(request)
        return passed


def _find(entry: tuple[float, int, str], requests: Mapping[str, Request]) -> Request | None:
    _, arrival, request_id = entry
    request = requests.get(request_id)
    return request if request is not None and request.arrival == arrival else None
