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
from fastgen_balancer.pick import Refusal, Request, pick

EMPTY_GRACE_SECONDS: Final = 2.0
"""How long held requests outlive the last endpoint: its successor may be about to be heard of."""


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
    placed: "asyncio.Future[Placed | Refusal]"


Answer: TypeAlias = Placed | Held | Refusal


class Dispatcher:
    """Invariant: while the queue holds a request, no later one that generates overtakes it."""

    def __init__(
        self, fleet: Fleet, rng: Random, clock: Callable[[], float], max_queued: int
    ) -> None:
        self.max_queued = max_queued
        self._fleet = fleet
        self._rng = rng
        self._clock = clock
        self._queue: deque[Held] = deque()
        self._empty_since: float | None = None

    @property
    def queued(self) -> int:
        return len(self._queue)

    def offer(self, request_id: str, request: Request) -> Answer:
        """Places the request at once if it can, else holds it, else refuses it.

        Without an endpoint it holds none: nobody knows how long that lasts.
        """
        answer = self._place(request_id, request)
        if answer is not Refusal.FULL:
            return answer
        if len(self._queue) >= self.max_queued:
            return Refusal.FULL
        held = Held(request_id, request, asyncio.get_running_loop().create_future())
        self._queue.append(held)
        return held

    def withdraw(self, held: Held) -> Refusal:
        """Takes a request off the queue: its client left or it waited too long; says for what."""
        if held in self._queue:
            self._queue.remove(held)
        return self._reason()

    def pump(self) -> None:
        """Places held requests, first come first served, while there is room.

        Refuses them when there has been no endpoint for EMPTY_GRACE_SECONDS.
        """
        while self._queue:
            held = self._queue[0]
            if not held.placed.done():
                answer = self._send(held.id, held.request)
                if isinstance(answer, Refusal) and not self._is_abandoned():
                    return
                held.placed.set_result(answer)
            self._queue.popleft()

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
        return since is not None and self._clock() - since >= EMPTY_GRACE_SECONDS

    def _send(self, request_id: str, request: Request) -> Placed | Refusal:
        answer = pick(self._fleet.candidates(), request, self._rng)
        if answer is not Refusal.NO_ENDPOINTS:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = self._clock()
        if isinstance(answer, Refusal):
            return answer
        if request.generates:
            sent = Sent(request_id, request.tokens, self._clock())
            self._fleet.send(answer.order[0], sent)
        found = (self._fleet.endpoint(name) for name in answer.order)
        return Placed(tuple(endpoint for endpoint in found if endpoint is not None))
