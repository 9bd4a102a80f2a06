"""The simulated balancer: the product's own fleet and `pick`, with a queue in front."""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from fastgen_api.names import Port
from fastgen_balancer.account import EXPECTED_OUTPUT_TOKENS, Report, Sent
from fastgen_balancer.dispatch import next_place
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.load import INTERVAL_SECONDS
from fastgen_balancer.pick import Refusal, Request, pick
from fastgen_balancer.signals import LocalSignals
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.replica import Replica

MOST_QUEUED: Final = 1000
LONGEST_WAIT_SECONDS: Final = 30.0


class Balancing:
    """Invariant: while the queue holds a request, no later one passes by it."""

    def __init__(self, clock: Callable[[], float], seed: int, max_concurrent_requests: int) -> None:
        self.queue: deque[Call] = deque()
        self._clock = clock
        self._rng = Random(seed)
        self._capacity = max_concurrent_requests
        self._fleet = Fleet(clock, max_concurrent_requests)
        self._replicas: dict[str, Replica] = {}
        self._heard_at: dict[str, float] = {}

    def set_endpoints(self, ready: Iterable[Replica], draining: Iterable[Replica]) -> None:
        """Takes the whole truth about the replicas."""
        here, leaving = list(ready), list(draining)
        self._replicas = {replica.name: replica for replica in here}
        endpoints = [_endpoint(replica.name, False) for replica in here]
        endpoints += [_endpoint(replica.name, True) for replica in leaving]
        self._fleet.set_endpoints(endpoints)

    def offer(self, call: Call) -> str | Refusal | None:
        """The name of the replica for a request, a refusal, or None: it is held."""
        self._listen()
        answer = Refusal.FULL if self.queue else self._send(call)
        if answer is not Refusal.FULL:
            return answer
        if len(self.queue) >= MOST_QUEUED:
            return Refusal.FULL
        self.queue.append(call)
        return None

    def pump(self) -> list[tuple[Call, str | Refusal]]:
        """What becomes of held requests: placed while there is room, refused when too old."""
        moved: list[tuple[Call, str | Refusal]] = []
        if self.queue:
            self._listen()
        now = self._clock()
        while self.queue and now - self.queue[0].arrived >= LONGEST_WAIT_SECONDS:
            moved.append((self.queue.popleft(), Refusal.FULL))
        while self.queue:
            place = next_place(now - self.queue[0].arrived)
            call = self.queue[place]
            answer = self._send(call)
            if isinstance(answer, Refusal):
                break
            del self.queue[place]
            moved.append((call, answer))
        return moved

    def ended(self, call: Call, replica: str, *, well: bool) -> None:
        """A request has ended."""
        self._fleet.end(call.id)
        self._fleet.answered(replica, well=well)

    def signals(self) -> LocalSignals:
        """What the autoscaler may know of this balancer, as `Picker.signals` says it."""
        self._listen()
        return LocalSignals(
            queued_requests=len(self.queue),
            in_flight_requests=self._fleet.in_flight,
            ready_endpoints=len(self._fleet.candidates()),
            saturated_endpoints=self._fleet.saturated(),
        )

    @property
    def in_flight(self) -> int:
        return self._fleet.in_flight

    def _send(self, call: Call) -> str | Refusal:
        output = min(EXPECTED_OUTPUT_TOKENS, call.max_tokens or EXPECTED_OUTPUT_TOKENS)
        request = Request(generates=True, tokens=call.prompt_tokens + output)
        answer = pick(self._fleet.candidates(), request, self._rng)
        if isinstance(answer, Refusal):
            return answer
        name = answer.order[0]
        self._fleet.send(name, Sent(call.id, request.tokens, self._clock()))
        return name

    def _listen(self) -> None:
        """Hears each replica's load again once the last word is as old as the poller lets it."""
        now = self._clock()
        for name, replica in self._replicas.items():
            if now - self._heard_at.get(name, -INTERVAL_SECONDS) < INTERVAL_SECONDS:
                continue
            self._heard_at[name] = now
            self._fleet.hear(name, self._report(replica, now))

    def _report(self, replica: Replica, now: float) -> Report:
        running, waiting = replica.num_running, replica.num_waiting
        full = running + waiting >= self._capacity
        return Report(
            asked_at=now,
            running_requests=running,
            waiting_requests=waiting,
            owed_tokens=replica.num_owed,
            max_concurrent_requests=self._capacity,
            saturated=full or replica.num_free_blocks == 0 or waiting > 0,
        )


def _endpoint(name: str, terminating: bool) -> Endpoint:
    return Endpoint(name, name, Port.REPLICA_HTTP, Port.REPLICA_GRPC, terminating)
