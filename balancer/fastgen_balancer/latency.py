"""Which endpoints answer far later than the others: by time to first byte, and by silence."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from fastgen_balancer.account import Sent

NEWEST: Final = 10
"""Requests of an endpoint that count."""
MIN_SAMPLES: Final = 5
"""Fewer say nothing, neither of an endpoint nor of those that it is compared with."""
WINDOW_SECONDS: Final = 60.0
"""Older answers say nothing of now."""
SLOW_FACTOR: Final = 4.0
SLOW_MARGIN_SECONDS: Final = 1.0
"""Beyond the factor: among answers within milliseconds nobody minds a factor."""
LARGEST_SHARE: Final = 1 / 3
"""Of the endpoints that may be out for slowness; of two or three it may be one."""
SMALL_PROMPT_TOKENS: Final = 500
"""What a request of this size or less takes counts in full; a larger one may take longer."""


def scaled(seconds: float, tokens: int) -> float:
    """Time to first byte as a small request would have had it: long prompts may take long."""
    return seconds * SMALL_PROMPT_TOKENS / max(SMALL_PROMPT_TOKENS, tokens)


@dataclass(frozen=True, slots=True)
class Times:
    """What one endpoint's newest requests took, scaled."""

    answered: Sequence[tuple[float, float]]
    """When each was sent, and its time to first byte."""
    silent: Sequence[tuple[float, float]]
    """The same of those without a byte, with their time so far."""


@dataclass(slots=True)
class FirstBytes:
    """The requests of one endpoint up to their first byte.

    Invariant: `waiting` holds nothing that has answered, ended or moved.
    """

    waiting: dict[str, Sent] = field(default_factory=dict)
    answered: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def sent(self, sent: Sent) -> None:
        self.waiting[sent.id] = sent

    def left(self, request_id: str) -> None:
        """The request has ended, or gone elsewhere, and tells nothing."""
        self.waiting.pop(request_id, None)

    def first_byte(self, request_id: str, now: float) -> float | None:
        """Notes an answer's begin; its scaled time, None when it was not waited for."""
        sent = self.waiting.pop(request_id, None)
        if sent is None:
            return None
        seconds = scaled(now - sent.sent_at, sent.tokens)
        self.answered.append((sent.sent_at, seconds))
        return seconds

    def forget(self) -> None:
        """What was learned so far counts no more."""
        self.answered.clear()
        self.waiting.clear()

    def times(self, now: float) -> Times:
        return Times(
            [each for each in self.answered if now - each[0] <= WINDOW_SECONDS],
            [(s.sent_at, scaled(now - s.sent_at, s.tokens)) for s in self.waiting.values()],
        )


def limits(times: Mapping[str, Times]) -> dict[str, float]:
    """For each endpoint the time above which it counts as slow: that of the others decides.

    An endpoint without others that have answered enough is not in the result.
    """
    medians = {
        name: median(seconds for _, seconds in each.answered)
        for name, each in times.items()
        if len(each.answered) >= MIN_SAMPLES
    }
    found = {}
    for name in times:
        others = [value for other, value in medians.items() if other != name]
        if others:
            found[name] = SLOW_FACTOR * median(others) + SLOW_MARGIN_SECONDS
    return found


def slow(times: Mapping[str, Times], already_out: int, total: int) -> list[str]:
    """The endpoints to eject now, the slowest first.

    `already_out` of the `total` endpoints are out; together they are no more than LARGEST_SHARE,
    so that no fleet is emptied because all its replicas are slow, each at its time.
    """
    room = max(1, int(total * LARGEST_SHARE)) - already_out
    if room <= 0 or total < 2:
        return []
    found = []
    for name, limit in limits(times).items():
        each = times[name]
        # A request that has waited for less than the limit may still be quick.
        silent = [one for one in each.silent if one[1] > limit]
        newest = sorted([*each.answered, *silent], reverse=True)[:NEWEST]
        if len(newest) >= MIN_SAMPLES:
            typical = median(seconds for _, seconds in newest)
            if typical > limit:
                found.append((typical / limit, name))
    return [name for _, name in sorted(found, reverse=True)[:room]]
