"""How long answers will become, and how many blocks they will hold together at most."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from typing import Final

from fastgen_runtime.engine.blocks import blocks_for
from fastgen_runtime.engine.request import Request

_WINDOW: Final = 512
_FEWEST: Final = 32
"""Answers that must have ended before their lengths say something about the next ones."""
_QUANTILE: Final = 0.8
"""Not the mean: half of the answers are longer than that, and each of them needs its blocks."""


class LengthHistory:
    """The output lengths of the requests that ended last.

    Past-Future scheduling (Gong et al., arXiv 2507.10150): what has ended tells how much longer
    those go on that have come as far.
    """

    __slots__ = ("_first_guess", "_last", "_sorted", "_sum")

    def __init__(self, first_guess: int) -> None:
        """first_guess: how long an answer is taken to become before there are enough of them."""
        self._first_guess = first_guess
        self._last: deque[int] = deque()
        self._sorted: list[int] = []
        self._sum = 0

    def note(self, num_output_tokens: int) -> None:
        """A request has ended."""
        if len(self._last) == _WINDOW:
            oldest = self._last.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
            self._sum -= oldest
        self._last.append(num_output_tokens)
        insort(self._sorted, num_output_tokens)
        self._sum += num_output_tokens

    @property
    def mean(self) -> float:
        """Of the answers that ended last; the first guess before there are enough of them."""
        if len(self._sorted) < _FEWEST:
            return self._first_guess
        return self._sum / len(self._sorted)

    def expected_remaining(self, request: Request) -> int:
        """Output tokens still to come; as many again once none was as long. At least 1."""
        done = request.num_output_tokens
        return min(request.new.max_tokens - done, max(self._expected(done) - done, 1))

    def _expected(self, done: int) -> int:
        longer = self._first_guess
        if len(self._sorted) >= _FEWEST:
            first = bisect_right(self._sorted, done)
            count = len(self._sorted) - first
            longer = self._sorted[first + int(count * _QUANTILE)] if count else 0
        return longer if longer > done else 2 * done


class Forecast:
    """How many output tokens the requests that arrive will have, right on the whole.

    Each is taken to have as many as the mean of those that ended, within its own limit. By how much
    that was wrong is known when it ends, and is made up for by the next ones, so that the sum of
    all forecasts follows the sum of all answers whatever mix of limits clients set.
    """

    __slots__ = ("_history", "_missing")

    def __init__(self, history: LengthHistory) -> None:
        self._history = history
        self._missing = 0

    def tokens(self, max_tokens: int) -> int:
        """Of a request that arrives."""
        likely = max(1, min(max_tokens, round(self._history.mean)))
        # A part at a time: one long answer must not look like a burst of work.
        made_up = min(max(likely + self._missing, likely // 2), 2 * likely)
        self._missing -= made_up - likely
        return made_up

    def note(self, forecast: int, num_output_tokens: int) -> None:
        """A request has ended, with so many in place of what was forecast."""
        self._missing += num_output_tokens - forecast


class Outlook:
    """The blocks that requests will hold at once, as more of them are let in.

    Shared blocks, which a request took from the prefix cache, are counted once, and until all have
    ended; also those that a running request made, which has them for itself no longer.
    """

    __slots__ = ("_block_size", "_history", "_prospects", "_shared", "_upper_tokens")

    def __init__(
        self,
        requests: Iterable[tuple[Request, int]],
        history: LengthHistory,
        block_size: int,
        num_shared: int = 0,
    ) -> None:
        """requests: each with how many shared blocks it holds. num_shared: how many there are."""
        self._history = history
        self._block_size = block_size
        self._shared = num_shared
        self._prospects = sorted(self._prospect(*request) for request in requests)
        self._upper_tokens = sum(length - ends for ends, length in self._prospects)

    def fits(self, request: Request, num_hits: int, num_new_shared: int, num_blocks: int) -> bool:
        """Whether the request, too, will find its blocks.

        num_hits: blocks that it takes from the cache, num_new_shared of them as the first one.
        """
        prospect = self._prospect(request, num_hits)
        capacity = (num_blocks - self._shared - num_new_shared) * self._block_size
        # No more than if all ended at once; mostly this is all that has to be known.
        if self._upper_tokens + prospect[1] - prospect[0] <= capacity:
            return True
        insort(self._prospects, prospect)
        peak = peak_tokens(self._prospects)
        self._prospects.remove(prospect)
        return peak <= capacity

    def add(self, request: Request, num_hits: int, num_new_shared: int) -> None:
        """The request is let in."""
        prospect = self._prospect(request, num_hits)
        insort(self._prospects, prospect)
        self._upper_tokens += prospect[1] - prospect[0]
        self._shared += num_new_shared

    def peak_blocks(self) -> int:
        """Most blocks that the requests hold at once if each ends when expected; never too few."""
        return self._shared + blocks_for(peak_tokens(self._prospects), self._block_size)

    def _prospect(self, request: Request, num_shared: int) -> tuple[int, int]:
        # The last block of each is taken to hold one token only.
        own = len(request.token_ids) - num_shared * self._block_size + self._block_size - 1
        return -self._history.expected_remaining(request), own


def peak_tokens(prospects: Iterable[tuple[int, int]]) -> int:
    """Most tokens held at once; `prospects`: (- remaining, length), in order.

    The peak is at the end of one request, when all that end later have grown by as much.
    """
    peak = total = 0
    for count, (ends, length) in enumerate(prospects, start=1):
        total += length
        peak = max(peak, total - count * ends)
    return peak
