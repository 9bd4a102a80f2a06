"""Who counts the requests of gateways: the replica what it has seen, the picker what none has."""

import asyncio
import contextlib
from typing import TypeAlias

import pytest
from balancer_gateways import BUFFERED, DUPLEX, Desk, asks, headers_of, sends, tells
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from fastgen_api.names import Header, Outcome
from fastgen_balancer.account import Sent

Call: TypeAlias = "asyncio.Task[list[messages.ProcessingResponse]]"


async def held(desk: Desk, mode: int) -> Call:
    """A request in the queue of a desk whose endpoints are full."""
    for name in "ab":
        desk.fleet.send(name, Sent(name, 1, desk.clock.now))
    call = asyncio.create_task(desk.call(asks(mode), sends()))
    await asyncio.sleep(0.05)
    assert desk.dispatcher.queued == 1
    return call


async def leave(call: Call) -> None:
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
@pytest.mark.parametrize(
    ("seconds", "outcome"), [(0.1, Outcome.EXCLUDED), (9.0, Outcome.LATE_FIRST_TOKEN)]
)
async def test_a_client_that_leaves_the_queue_is_counted_once(
    mode: int, seconds: float, outcome: Outcome
) -> None:
    desk = Desk(capacity=1, ttft_seconds=5.0)
    call = await held(desk, mode)
    desk.clock.now += seconds
    await leave(call)
    assert desk.counted() == {outcome: 1}
    assert desk.dispatcher.queued == 0
    assert desk.fleet.in_flight == 2, "the two that fill the endpoints"
    assert desk.picker._held_bytes == 0


async def test_a_client_whose_turn_comes_as_it_leaves_is_counted_and_not_in_flight() -> None:
    desk = Desk(capacity=1)
    call = await held(desk, DUPLEX)
    desk.fleet.end("a")
    desk.dispatcher.pump()
    assert desk.fleet.in_flight == 2, "it has its endpoint"
    await leave(call)
    assert desk.counted() == {Outcome.EXCLUDED: 1}
    assert desk.fleet.in_flight == 1


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_who_goes_before_the_destination_was_told_has_reached_no_replica(mode: int) -> None:
    desk = Desk()
    process = desk.process(asks(mode), sends())
    while True:
        answer = await anext(process)
        if Header.WAITED in str(answer) or "x-gateway-destination-endpoint" in str(answer):
            break
    assert desk.fleet.in_flight == 1
    await process.aclose()
    del answer
    await asyncio.sleep(0.01)
    assert desk.counted() == {Outcome.EXCLUDED: 1}
    assert desk.fleet.in_flight == 0


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (tells("503"), {Outcome.ERROR: 1}),
        (tells("503", "10.0.0.1:8000"), {Outcome.ERROR: 1}),
        (tells("200", grpc_status="14"), {Outcome.ERROR: 1}),
        (tells("503", x_fastgen_replica="a"), {}),
        (tells("200", x_fastgen_replica="a"), {}),
        (tells("500"), {}),
        (tells("504"), {}),
    ],
    ids=["503", "503 of who is lost", "grpc", "the replica's", "served", "500", "504"],
)
@pytest.mark.parametrize("is_told_twice", [False, True])
async def test_what_the_gateway_lost_is_an_error_and_all_else_the_replicas(
    answer: messages.ProcessingRequest, counted: dict[Outcome, int], is_told_twice: bool
) -> None:
    desk = Desk()
    await desk.call(asks(), sends(), *[answer] * (2 if is_told_twice else 1))
    assert desk.counted() == counted
    assert desk.fleet.in_flight == 0


async def test_what_costs_no_engine_is_not_counted() -> None:
    desk = Desk()
    await desk.call(asks(path="/v1/models", method="GET"), tells("503"))
    assert desk.counted() == {}


async def test_a_request_that_was_held_is_the_replicas_to_count() -> None:
    """It knows the wait, and that nobody here hears of the end; of others it counts all anyway."""
    desk = Desk(capacity=1)
    first, *_ = await desk.call(asks(), sends())
    assert not {Header.WAITED, Header.UNWITNESSED} & headers_of(first).keys()
    call = await held(desk, DUPLEX)
    desk.clock.now += 2
    desk.fleet.end("a")
    desk.dispatcher.pump()
    told = headers_of((await call)[0])
    assert (told[Header.WAITED], told[Header.UNWITNESSED]) == (b"2000", b"1")
