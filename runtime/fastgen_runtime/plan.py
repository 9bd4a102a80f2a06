"""Which tokens the next step computes.

There are no phases: a request owes tokens, and a step hands out pieces of what is owed from one
budget. Requests that owe one token come first, then prompts fill the rest: Dynamic SplitFuse
(Holmes et al., DeepSpeed-FastGen, arXiv 2401.08671, section 3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastgen_runtime.blocks import blocks_for
from fastgen_runtime.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """budget_tokens: most tokens of a step. max_running: most requests that hold blocks.
    max_waiting: length of the queue. max_length: most tokens of a request, prompt and output.
    expected_output_tokens: how long an answer is taken to become until it proves longer.
    """

    budget_tokens: int
    max_running: int
    max_waiting: int
    max_length: int
    expected_output_tokens: int = 256

    def __post_init__(self) -> None:
        # Each running request must get its token in each step, whatever the others do.
        if not 1 <= self.max_running <= self.budget_tokens:
            raise ValueError("max_running must lie between 1 and budget_tokens")
        if self.max_length < 2 or self.max_waiting < 0 or self.expected_output_tokens < 1:
            raise ValueError("limits must be positive")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `schedule` decided: whom to let go, whom to let in, and each one's number of tokens."""

    preempted: tuple[Request, ...]
    admitted: tuple[Request, ...]
    pieces: tuple[tuple[Request, int], ...]


def expected_remaining(request: Request, limits: Limits) -> int:
    """Output tokens still to come: as expected, or as many again once that has proved wrong."""
    done = request.num_output_tokens
    guess = max(limits.expected_output_tokens - done, done, 1)
    return min(request.new.max_tokens - done, guess)


def peak_blocks(requests: Iterable[Request], limits: Limits, block_size: int) -> int:
    """Most blocks that `requests` hold at once if each ends when expected; never too few.

    Past-Future scheduling (Gong et al., arXiv 2507.10150): in the order of what remains, the peak
    is at the end of one of them, when all that end later have grown by as much.
    """
    outlook = sorted(
        ((expected_remaining(request, limits), len(request.token_ids)) for request in requests),
        reverse=True,
    )
    peak_tokens = sum_tokens = 0
    for count, (remaining, length) in enumerate(outlook, start=1):
        # The last block of each is taken to hold one token only.
        sum_tokens += length + block_size - 1
        peak_tokens = max(peak_tokens, sum_tokens + count * remaining)
    return blocks_for(peak_tokens, block_size)


def schedule(
    running: Sequence[Request],
    waiting: Sequence[Request],
    num_blocks: int,
    num_free: int,
    block_size: int,
    limits: Limits,
) -> Plan:
    """Plans one step. `running` and `waiting` in order of arrival; nothing is changed.

    Some request always gets a token while there is any: the one with most computed tokens is never
    preempted for another, and no request is larger than the pool.
    """
    draft = _Draft(list(running), num_free, block_size, limits.budget_tokens)
    for request in sorted(running, key=lambda request: request.num_owed > 1):
        draft.give(request)
    admitted: list[Request] = []
    # After a preemption there is no room: letting others in would only preempt again.
    if not draft.preempted:
        for request in waiting:
            candidates = [*draft.running, request]
            if draft.budget == 0 or len(candidates) > limits.max_running:
                break
            if len(candidates) > 1 and peak_blocks(candidates, limits, block_size) > num_blocks:
                break
            draft.running.append(request)
            admitted.append(request)
            draft.give(request)
    return Plan(tuple(draft.preempted), tuple(admitted), tuple(draft.pieces.items()))


class _Draft:
    """A plan in the making; blocks are counted, not taken."""

    __slots__ = ("_block_size", "_free", "budget", "pieces", "preempted", "running")

    def __init__(self, running: list[Request], num_free: int, block_size: int, budget: int) -> None:
        self.running = running
        self.budget = budget
        self.pieces: dict[Request, int] = {}
        self.preempted: list[Request] = []
        self._free = num_free
        self._block_size = block_size

    def give(self, request: Request) -> None:
        """Gives a request as much of what it owes as budget and blocks allow."""
        if request in self.preempted or self.budget == 0:
            return
        held = len(request.block_ids)
        wanted = min(request.num_owed, self.budget)
        # A prompt makes do with the free blocks; an answer under way, or the only one left to
        # make progress, may take another's.
        while self._room(request) < 1 and (request.num_owed == 1 or not self.pieces):
            victim = min(
                (other for other in self.running if other is request or self._holds(other)),
                key=_least_to_recompute,
            )
            self._preempt(victim)
            if victim is request:
                return
        wanted = min(wanted, self._room(request))
        if wanted > 0:
            self.pieces[request] = wanted
            self.budget -= wanted
            self._free -= self._needed(request, wanted) - held

    def _room(self, request: Request) -> int:
        """Positions that the request's own and all free blocks have left."""
        blocks = len(request.block_ids) + self._free
        return blocks * self._block_size - request.num_computed

    def _needed(self, request: Request, piece: int) -> int:
        """Blocks that the request holds after this piece."""
        needed = blocks_for(request.num_computed + piece, self._block_size)
        return max(needed, len(request.block_ids))

    def _holds(self, request: Request) -> bool:
        return bool(request.block_ids) or request in self.pieces

    def _preempt(self, victim: Request) -> None:
        piece = self.pieces.pop(victim, 0)
        self.budget += piece
        self._free += self._needed(victim, piece)
        self.running.remove(victim)
        self.preempted.append(victim)


def _least_to_recompute(request: Request) -> tuple[int, int]:
    """The cheapest victim first; among equals the one that came last."""
    return request.num_computed, -request.arrival
