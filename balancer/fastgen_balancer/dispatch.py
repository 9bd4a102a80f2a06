"""Sends a request to a replica, holds it until one has room, or refuses it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from fastgen_balancer.account import Sent
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.pick import Candidate, Refusal, Request, pick
from fastgen_balancer.settings import MAX_WAIT_SECONDS
from fastgen_balancer.turnover import Turnover, retry_after_seconds, wait_seconds

EMPTY_GRACE_SECONDS: Final = 2.0
"""How long held requests outlive the last endpoint: its successor may be about to be heard of."""
PATIENCE_SECONDS: Final = 2.0
"""A queue whose oldest request has waited for longer is served from its other end."""
MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""Of the bodies of all held requests: a quarter of the memory that Envoy, which has them, gets."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request goes: the endpoint to try, then the one for the retry."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A request in the queue; `placed` is done when its turn and a replica's room are there.

    It is a refusal when the endpoints have all gone.
    """

    id: str
    request: Request
    since: float
    placed: "asyncio.Future[Placed | Refusal]"
    without_endpoint: bool = False
    """Whether it waits for the first replica, rather than for room."""


Answer: TypeAlias = Placed | Held | Refusal


def next_place(waited_seconds: float) -> int:
    """Whose turn it is in a queue, oldest first, whose oldest has waited for so long.

    First come first served until that makes everybody late; then the last come, who may yet be in
    time, while those who wait in vain are refused in the end ("adaptive LIFO": Maurer, "Fail at
    Scale", ACM Queue 13(8), 2015).
    """
    return -1 if waited_seconds > PATIENCE_SECONDS else 0


class Dispatcher:
    """Invariants: while the queue holds a request, no later one that generates passes by it: whose
    turn it is, `next_place` says.

    `held_bytes` is the sum over the queue, and no more than MAX_HELD_BYTES.
    """

    def __init__(
        self,
        fleet: Fleet,
        rng: Random,
        clock: Callable[[], float],
        max_queued: int,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_queued = max_queued
        self.hold_seconds = 0.0
        """Above 0 requests wait for the first replica; for how long is the caller's to heed."""
        self.max_wait_seconds = MAX_WAIT_SECONDS
        """Longest wait for room, which is the caller's to heed, too."""
        self._on_wait = on_wait
        """Called when a request begins to wait for the first replica."""
        self._fleet = fleet
        self._rng = rng
        self._clock = clock
        self._queue: deque[Held] = deque()
        self._held_bytes = 0
        self._turnover = Turnover()
        self._empty_since: float | None = None

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def offer(self, request_id: str, request: Request) -> Answer:
        """Places the request at once if it can, else holds it, else refuses it.

        Without an endpoint it holds one only if a replica will be started for it: nobody knows how
        long the absence lasts otherwise. Requests that cost no engine start none.
        """
        answer = self._place(request_id, request)
        if isinstance(answer, Placed):
            return answer
        is_empty = answer is Refusal.NO_ENDPOINTS
        if is_empty and not (request.generates and self.hold_seconds > 0):
            return answer
        if len(self._queue) >= self.max_queued:
            return Refusal.FULL
        if self._held_bytes + request.body_bytes > MAX_HELD_BYTES:
            return Refusal.FULL
        if not is_empty and self._is_too_late(request):
            return Refusal.DEADLINE
        future: asyncio.Future[Placed | Refusal] = asyncio.get_running_loop().create_future()
        now = self._clock()
        held = Held(request_id, request, now, future, is_empty)
        self._queue.append(held)
        self._held_bytes += request.body_bytes
        self._turnover.begin(now)
        if is_empty:
            self._on_wait()
        return held

    def offer_at(self, request_id: str, request: Request, name: str) -> Placed | Refusal:
        """Places a suspect where its like runs, whoever waits; one that finds no room goes away.

        Held, it would keep everybody waiting until there is room at the one endpoint. Where that
        one takes nothing any more, it is offered as any other.
        """
        there = [each for each in self._fleet.candidates() if each.name == name]
        if not there:
            answer = self._place(request_id, request)
        else:
            answer = self._send(request_id, request, there)
        return Refusal.UNDECIDED if isinstance(answer, Refusal) else answer

    def retry_after_seconds(self) -> int:
        """When a request that was refused for want of room should come again."""
        now = self._clock()
        rate, still = self._turnover.rate(now), self._turnover.still_seconds(now)
        return retry_after_seconds(self.queued, rate, still, self._rng)

    def withdraw(self, held: Held) -> Refusal:
        """Takes a request off the queue: its client left or it waited too long; says for what."""
        if held in self._queue:
            self._queue.remove(held)
            self._held_bytes -= held.request.body_bytes
            self._note_length()
        deadline = held.request.deadline
        if deadline is not None and self._clock() >= deadline:
            return Refusal.EXPIRED
        return self._reason()

    def pump(self) -> None:
        """Places held requests, each in its turn, while there is room.

        Refuses them when there has been no endpoint for EMPTY_GRACE_SECONDS.
        """
        had_endpoints = self._empty_since is None
        while self._queue:
            place = self._turn()
            held = self._queue[place]
            if not held.placed.done():
                answer = self._send(held.id, held.request)
                if isinstance(answer, Refusal) and not self._is_abandoned():
                    break
                held.placed.set_result(answer)
                if isinstance(answer, Placed):
                    self._turnover.placed(self._clock())
            del self._queue[place]
            self._held_bytes -= held.request.body_bytes
        self._note_length()
        if self._queue and had_endpoints and self._empty_since is not None:
            self._wake()

    def _turn(self) -> int:
        return next_place(self._clock() - self._queue[0].since)

    def _wake(self) -> None:
        """The last replica has gone while requests wait for room."""
        if self.hold_seconds > 0:
            self._on_wait()

    def _note_length(self) -> None:
        if not self._queue:
            self._turnover.end()

    def _is_too_late(self, request: Request) -> bool:
        """Nobody waits for longer than `max_wait_seconds`: whose client does is held as those are
        that tell no deadline, however slow the queue is."""
        if request.deadline is None:
            return False
        now = self._clock()
        ahead = self.queued if not self._queue or self._turn() == 0 else 0
        rate, still = self._turnover.rate(now), self._turnover.still_seconds(now)
        wait = min(wait_seconds(ahead, rate, still), self.max_wait_seconds)
        return now + wait >= request.deadline

    def _place(self, request_id: str, request: Request) -> Placed | Refusal:
        if request.generates and self._queue:
            self.pump()
        if request.generates and self._queue:
            return self._reason()
        return self._send(request_id, request)

    def _reason(self) -> Refusal:
        return Refusal.FULL if self._fleet.candidates() else Refusal.NO_ENDPOINTS

    def _is_abandoned(self) -> bool:
        since = self._empty_since
        # While a replica is on its way each request's own patience counts.
        if self.hold_seconds > 0:
            return False
        return since is not None and self._clock() - since >= EMPTY_GRACE_SECONDS

    def _send(
        self, request_id: str, request: Request, among: list[Candidate] | None = None
    ) -> Placed | Refusal:
        candidates = self._fleet.candidates() if among is None else among
        answer = pick(candidates, request, self._rng)
        if answer is not Refusal.NO_ENDPOINTS:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = self._clock()
        if isinstance(answer, Refusal):
            return answer
        if request.generates:
            sent = Sent(request_id, request.tokens, self._clock(), request.witnessed)
            self._fleet.send(answer.order[0], sent)
        found = (self._fleet.endpoint(name) for name in answer.order)
        return Placed(tuple(endpoint for endpoint in found if endpoint is not None))
