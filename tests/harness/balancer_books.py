"""A balancer's books without a balancer: endpoints, reports and a clock that stands still."""

from collections.abc import Iterator
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from fastgen_balancer.account import Report
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.ext_proc import ExternalProcessor
from fastgen_balancer.fleet import Fleet


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def endpoint(name: str, terminating: bool = False, host: str = "10.0.0.1") -> Endpoint:
    return Endpoint(name, host, 8000, 9000, terminating)


def report(at: float, running: int = 0, capacity: int = 2, **more: object) -> Report:
    fields = {"waiting_requests": 0, "owed_tokens": 0, "max_concurrent_requests": capacity}
    return Report(asked_at=at, running_requests=running, **(fields | more))  # type: ignore[arg-type]


def fleet_of(clock: Clock, *names: str) -> Fleet:
    fleet = Fleet(clock, default_capacity=8)
    fleet.set_endpoints([endpoint(name) for name in names])
    return fleet


class Envoy:
    """A call of our own Envoy's, and what it was answered."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.answers: list[messages.ProcessingResponse] = []
        self.failures: list[BaseException] = []
        self.processor = ExternalProcessor(arrivals, self)

    def send(self, message: bytes) -> None:
        self.answers.append(messages.ProcessingResponse.FromString(message))

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def tell(self, *parts: messages.ProcessingRequest) -> list[messages.ProcessingResponse]:
        """What has been answered by then."""
        for part in parts:
            self.processor.receive(part.SerializeToString())
        return self.answers


class Told:
    """A stream's context, whose proxy tells these messages and then ends."""

    def __init__(self, *parts: Any) -> None:
        self._parts: Iterator[Any] = iter(parts)

    async def read(self) -> Any:
        part = next(self._parts, grpc.aio.EOF)
        return await part() if callable(part) else part
