"""Asks each replica how loaded it is."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_balancer.account import Report
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Fleet

INTERVAL_SECONDS: Final = 0.25
TIMEOUT_SECONDS: Final = 1.0
GOLDEN: Final = (5**0.5 - 1) / 2
CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # One subchannel per poller: a shared one would outlive its endpoint.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

log = logging.getLogger(__name__)


def report_of(answer: inference_pb2.GetLoadResponse, asked_at: float) -> Report:
    """A replica's answer as we keep it."""
    full = 0 < answer.max_concurrent_requests <= answer.running_requests + answer.waiting_requests
    no_blocks = answer.total_blocks > 0 and answer.free_blocks == 0
    return Report(
        asked_at=asked_at,
        running_requests=answer.running_requests,
        waiting_requests=answer.waiting_requests,
        owed_tokens=answer.owed_tokens,
        max_concurrent_requests=answer.max_concurrent_requests,
        draining=answer.draining,
        saturated=full or no_blocks or answer.waiting_requests > 0,
    )


def phase(number: int) -> float:
    """When in the interval the so manieth endpoint is asked, as a share of it.

    Asked all at once, a hundred would keep requests waiting for tens of milliseconds. Multiples of
    the golden ratio keep apart, however many there are (Knuth, TAOCP 3, 6.4, theorem S).
    """
    return number * GOLDEN % 1


@dataclass(frozen=True, slots=True)
class _Poll:
    place: tuple[str, int, int]
    task: asyncio.Task[None]


class LoadPoller:
    """One task per endpoint, so that a silent replica delays no other's word."""

    def __init__(
        self, fleet: Fleet, clock: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self._polls: dict[str, _Poll] = {}
        self._begun = 0

    def follow(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Polls exactly these endpoints from now on."""
        places = {endpoint.name: endpoint.place for endpoint in endpoints}
        for name, poll in list(self._polls.items()):
            if places.get(name) != poll.place:
                self._polls.pop(name).task.cancel()
        for endpoint in endpoints:
            if endpoint.name not in self._polls:
                asking = self._poll(endpoint, phase(self._begun))
                self._begun += 1
                task = asyncio.create_task(asking, name=f"load {endpoint.name}")
                self._polls[endpoint.name] = _Poll(endpoint.place, task)

    async def close(self) -> None:
        tasks = [poll.task for poll in self._polls.values()]
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self, endpoint: Endpoint, first_rest: float) -> None:
        silent, rest = False, first_rest * INTERVAL_SECONDS
        async with grpc.aio.insecure_channel(
            endpoint.grpc_address, options=CHANNEL_OPTIONS
        ) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            while True:
                asked_at = self._clock()
                try:
                    answer = await stub.GetLoad(
                        inference_pb2.GetLoadRequest(), timeout=TIMEOUT_SECONDS
                    )
                except grpc.aio.AioRpcError as error:
                    # Silence is a time-out; only a dead process or link is told at once.
                    is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
                    self._fleet.hear_nothing(endpoint.name, is_gone=is_gone)
                    if not silent:
                        status = error.code().name
                        log.warning(
                            "GetLoad failed", extra={"endpoint": endpoint.name, "status": status}
                        )
                    silent = True
                else:
                    self._fleet.hear(endpoint.name, report_of(answer, asked_at))
                    silent = False
                    self._changed()
                await asyncio.sleep(max(0.05, rest - (self._clock() - asked_at)))
                rest = INTERVAL_SECONDS
