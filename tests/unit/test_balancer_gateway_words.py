"""Gateways that are broken or worse: what they tell and send harms nobody else."""

import asyncio
from typing import Any

import grpc
import pytest
from balancer_books import Clock, fleet_of
from balancer_gateways import BODY, BUFFERED, DUPLEX, Desk, asks, sends, tells
from prometheus_client import generate_latest

from fastgen_api.names import Metric
from fastgen_balancer import endpoint_picker, health
from fastgen_balancer.account import Sent
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.health import FAILURES_TO_EJECT
from fastgen_balancer.suspicion import Verdict


@pytest.mark.parametrize("status", ["500", "503", "429", "0", "200"])
async def test_lies_about_answers_move_nothing_of_others(status: str) -> None:
    desk = Desk()
    cost = desk.tokens()
    lies = {"x_fastgen_prompt_tokens": "1000000", "x_fastgen_replica": "b"}
    for i in range(100):
        body = BODY.replace(b"time", b"time %d" % i)
        await desk.call(asks(), sends(body), tells(status, "10.0.0.1:8000", **lies))
        desk.clock.now += 0.01
    desk.fleet.eject_slow()
    assert {each.name for each in desk.fleet.candidates()} == {"a", "b"}
    assert desk.fleet.in_flight == 0
    assert desk.tokens() == cost
    assert f"{Metric.REQUESTS}{{" in generate_latest(desk.registry).decode()
    for line in generate_latest(desk.registry).decode().splitlines():
        if line.startswith((f"{Metric.REQUESTS}{{", f"{Metric.EJECTIONS}{{")):
            assert line.endswith(" 0.0"), "replicas count how gateways' requests end"


async def test_silence_about_answers_makes_no_replica_slow() -> None:
    """Without response headers nothing is known of a first byte."""
    desk = Desk(capacity=64)
    waits = asyncio.Event()

    async def nothing() -> Any:
        await waits.wait()
        return grpc.aio.EOF

    for i in range(10):
        for name in "ab":
            desk.fleet.send(name, Sent(f"{name}{i}", 10, desk.clock.now))
            desk.fleet.first_byte(f"{name}{i}")
    calls = [asyncio.create_task(desk.call(asks(), sends(), nothing)) for _ in range(40)]
    await asyncio.sleep(0.05)
    assert desk.fleet.in_flight == 60
    desk.clock.now += 30
    desk.hear()
    desk.fleet.eject_slow()
    assert len(desk.fleet.candidates()) == 2
    waits.set()
    await asyncio.gather(*calls)
    assert desk.fleet.in_flight == 20


def test_a_gateways_request_is_no_probe() -> None:
    """It would have no verdict, and one that never ends would keep the endpoint out."""
    clock = Clock()
    fleet: Fleet = fleet_of(clock, "a", "b")
    for _ in range(FAILURES_TO_EJECT):
        fleet.answered("a", well=False)
    clock.now += health.FIRST_EJECTION_SECONDS
    assert len(fleet.candidates()) == 2, "half open"
    fleet.send("a", Sent("gateway", 1, clock.now, witnessed=False))
    assert len(fleet.candidates()) == 2
    fleet.move("gateway", "b")
    assert len(fleet.candidates()) == 2
    fleet.send("a", Sent("own", 1, clock.now))
    assert [each.name for each in fleet.candidates()] == ["b"]
    fleet.send("a", Sent("liar", 1, clock.now, witnessed=False))
    fleet.move("liar", "b")
    fleet.end("own")
    assert len(fleet.candidates()) == 2, "by the liar's word the probe would have been missed"


async def test_a_good_end_by_a_gateways_word_acquits_no_prompt() -> None:
    desk = Desk()
    exchange = desk.arrivals.begin(Exchange, {":method": "POST", ":path": "/v1/x"}, "")
    desk.arrivals.read(exchange, BODY)
    assert exchange.keys is not None
    key = exchange.keys.whole
    desk.quarantine.sent("own", key, ("a", "b"))
    desk.quarantine.crashed("a")
    assert desk.quarantine.verdict(key) is Verdict.SUSPECT
    await desk.call(asks(), sends(), tells("200", "10.0.0.1:8000"))
    desk.clock.now += 20
    desk.quarantine.ended("nobody", well=True)
    assert desk.quarantine.verdict(key) is Verdict.SUSPECT


@pytest.mark.parametrize("served", ["10.0.0.1:8000", ""])
async def test_a_gateways_own_503_is_no_answer_of_the_replica_that_it_names(
    served: str,
) -> None:
    desk = Desk()
    exchange = desk.arrivals.begin(Exchange, {":method": "POST", ":path": "/v1/x"}, "")
    desk.arrivals.read(exchange, BODY)
    assert exchange.keys is not None
    await desk.call(asks(), sends(), tells("503", served))
    assert desk.quarantine.verdict(exchange.keys.whole) is Verdict.UNDECIDED


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_bodies_of_gateways_cost_memory_within_a_bound(
    monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(endpoint_picker, "MAX_BODY_BYTES_HELD", 3 * len(BODY))
    desk, goes_on = Desk(capacity=64), asyncio.Event()

    async def rest() -> Any:
        await goes_on.wait()
        return sends(b"")

    uploads = [asyncio.create_task(desk.call(asks(), sends(ends=False), rest)) for _ in range(3)]
    await asyncio.sleep(0.05)
    refused = (await desk.call(asks(mode), sends()))[-1].immediate_response
    assert refused.status.code == 429
    headers = {each.header.key: each.header.raw_value for each in refused.headers.set_headers}
    assert int(headers["retry-after"]) >= 1
    goes_on.set()
    for answers in await asyncio.gather(*uploads):
        assert answers[0].HasField("request_headers"), "the others are served"
    assert desk.picker._held_bytes == 0
    answers = await desk.call(asks(mode), sends(), tells("200", x_fastgen_replica="a"))
    assert answers[0].WhichOneof("response") in ("request_headers", "request_body")
    assert desk.picker._held_bytes == 0
