"""What our own Envoy's requests and those of gateways have in common, and the books of both."""

import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from balancer_books import Clock, Envoy, Told, endpoint, report
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from prometheus_client import CollectorRegistry

from fastgen_api.names import Header, Metric, MetricLabel
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.dispatch import Held, Placed
from fastgen_balancer.endpoint_picker import EndpointPicker
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.member import Identity, Member
from fastgen_balancer.metrics import UnplacedMetrics
from fastgen_balancer.pick import Refusal
from fastgen_balancer.roster import Entry, Roster
from fastgen_balancer.settings import Settings
from fastgen_balancer.suspicion import FIRST_SENTENCE_SECONDS

HEADERS = {":method": "POST", ":path": "/v1/completions"}
GRPC = {
    ":method": "POST",
    ":path": "/fastgen.v1.InferenceService/Generate",
    "content-type": "application/grpc",
}
BODY = b'{"prompt": "once upon a time"}'


class Desk:
    """A reception of one endpoint with room for one request."""

    def __init__(self) -> None:
        self.clock = Clock()
        settings = Settings(max_queued_requests=10)
        self.folder = TemporaryDirectory()
        member = Member(Path(self.folder.name), Identity("d", "n"), settings, self.clock)
        (self.registry,) = member.registries()
        self.fleet = member.fleet
        self.fleet.set_endpoints([endpoint("a")])
        self.fleet.hear("a", report(self.clock.now, capacity=1))
        self.dispatcher = member.dispatcher
        self.quarantine = member.quarantine
        self.reception = member.reception
        roster = Roster((Entry("d", "d", settings),))
        nobody = UnplacedMetrics(CollectorRegistry(), "n")
        self.arrivals = Arrivals(lambda: roster, {"d": member}, nobody, self.clock)

    def come(self, headers: dict[str, str] | None = None, body: bytes = BODY) -> Exchange:
        exchange = self.arrivals.begin(Exchange, headers or HEADERS, "")
        assert self.arrivals.read(exchange, body) is None
        return exchange

    def fill(self) -> Exchange:
        """Takes the only place."""
        exchange = self.come()
        answer = self.reception.offer(exchange)
        assert isinstance(answer, Placed)
        self.reception.send(exchange, answer)
        return exchange

    def hold(self, headers: dict[str, str] | None = None) -> tuple[Exchange, Held]:
        exchange = self.come(headers)
        held = self.reception.offer(exchange)
        assert isinstance(held, Held)
        return exchange, held

    def count(self, name: str, **labels: str) -> float:
        own = {MetricLabel.DEPLOYMENT: "d", MetricLabel.NAMESPACE: "n"}
        found = self.registry.get_sample_value(name, own | labels)
        assert found is not None
        return found


async def test_who_leaves_just_as_its_turn_comes_holds_no_place() -> None:
    desk = Desk()
    first = desk.fill()
    exchange, held = desk.hold()
    # The stream's end is booked first, and lets the queue move; the wait hears of it later.
    desk.reception.end(exchange, well=False)
    desk.reception.end(first, well=True)
    assert held.placed.done()
    assert desk.fleet.in_flight == 1
    desk.reception.abandon(exchange, held)
    assert desk.fleet.in_flight == 0
    assert desk.count(Metric.REQUESTS, outcome="excluded") == 1
    desk.fill()


async def test_who_leaves_the_queue_lets_the_next_one_in() -> None:
    desk = Desk()
    first = desk.fill()
    exchange, held = desk.hold()
    waits = asyncio.create_task(desk.reception.wait(exchange, held, 30))
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert desk.dispatcher.queued == 0
    desk.reception.end(first, well=True)
    assert desk.fleet.in_flight == 0


async def test_a_prompt_that_is_convicted_while_it_waits_gives_its_place_back() -> None:
    desk = Desk()
    first = desk.fill()
    assert first.keys is not None
    exchange, held = desk.hold()
    waits = asyncio.create_task(desk.reception.wait(exchange, held, 30))
    await asyncio.sleep(0)
    for number in range(2):
        desk.quarantine.sent(f"crash-{number}", first.keys.whole, (f"x{number}",))
        desk.quarantine.crashed(f"x{number}")
    desk.reception.end(first, well=False)
    assert await waits is Refusal.QUARANTINED
    assert desk.fleet.in_flight == 0
    again = desk.come()
    assert desk.reception.offer(again) is Refusal.QUARANTINED
    refused = desk.reception.refuse(again, Refusal.QUARANTINED).immediate_response
    assert refused.status.code == 422
    headers = {each.header.key: each.header.raw_value for each in refused.headers.set_headers}
    assert int(headers["retry-after"]) == FIRST_SENTENCE_SECONDS


@pytest.mark.parametrize(
    ("headers", "passed", "seconds"),
    [
        ({}, 0.0, 30.0),
        ({"x-request-timeout": "4"}, 0.0, 4.0),
        ({"x-request-timeout": "4"}, 1.5, 2.5),
        ({"x-request-timeout": "4"}, 9.0, 0.0),
        ({"x-request-timeout": "400"}, 0.0, 30.0),
    ],
)
async def test_patience_is_the_clients_or_ours(
    headers: dict[str, str], passed: float, seconds: float
) -> None:
    desk = Desk()
    desk.fill()
    exchange, held = desk.hold(HEADERS | headers)
    desk.clock.now += passed
    assert desk.reception.patience(exchange, held) == seconds
    if seconds == 0:
        assert await desk.reception.wait(exchange, held, seconds) is Refusal.EXPIRED
        assert desk.dispatcher.queued == 0


@pytest.mark.parametrize(
    ("headers", "started", "unavailable"),
    [
        ({":status": "200"}, True, False),
        ({":status": "200", "grpc-status": "0"}, False, False),
        ({":status": "200", "grpc-status": "14"}, False, True),
        ({":status": "200", "grpc-status": "bad"}, False, False),
        ({":status": "503"}, False, True),
        ({":status": "429"}, False, False),
        ({}, False, False),
    ],
)
async def test_which_answers_bring_a_first_byte(
    headers: dict[str, str], started: bool, unavailable: bool
) -> None:
    desk = Desk()
    exchange = desk.fill()
    exchange.begin_answer(headers)
    desk.reception.first_byte(exchange, headers, None)
    assert desk.count(f"{Metric.FIRST_BYTE_SECONDS}_count") == started
    assert exchange.answered
    # A prompt that failed is undecided for a moment.
    verdict = desk.reception.judge(desk.come())
    assert (verdict is Refusal.UNDECIDED) == unavailable


async def test_what_one_proxys_answers_teach_counts_for_all() -> None:
    desk = Desk()
    before = desk.reception.request(desk.come()).tokens
    exchange = desk.fill()
    for _ in range(40):
        headers = {":status": "200", Header.PROMPT_TOKENS: str(len(BODY))}
        exchange.begin_answer(headers)
        desk.reception.first_byte(exchange, headers, "a")
    assert desk.reception.request(desk.come()).tokens > before + 10


def _headers(headers: dict[str, str], *, ends: bool) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.request_headers.end_of_stream = ends
    for key, value in headers.items():
        request.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return request


@pytest.mark.parametrize("who", ["our Envoy", "a gateway"])
async def test_a_generate_call_without_a_message_goes_nowhere(who: str) -> None:
    desk = Desk()
    told = _headers(GRPC, ends=True)
    if who == "a gateway":
        picker: Any = EndpointPicker(desk.arrivals, desk.clock, Random(1))
        (answer,) = [each async for each in picker.Process(None, Told(told))]
    else:
        (answer,) = Envoy(desk.arrivals).tell(told)
    assert answer.immediate_response.grpc_status.status == 3
    assert desk.count(Metric.PICKS, result="malformed") == 1
    assert desk.fleet.in_flight == 0


@pytest.mark.parametrize(("replica", "refusal"), [(None, Refusal.UNDECIDED), ("a", None)])
async def test_a_replica_that_says_itself_that_it_drains_makes_no_prompt_wait(
    replica: str | None, refusal: Refusal | None
) -> None:
    """Without a word of a replica it may have crashed."""
    desk = Desk()
    exchange = desk.fill()
    exchange.begin_answer({":status": "503"})
    desk.reception.first_byte(exchange, {}, replica)
    desk.reception.end(exchange, well=False)
    assert desk.reception.judge(desk.come()) is refusal


def suspect_with_two_endpoints(capacity: int) -> Desk:
    """BODY's prompt was there when a third endpoint crashed."""
    desk = Desk()
    desk.fleet.set_endpoints([endpoint("a"), endpoint("b")])
    for name in "ab":
        desk.fleet.hear(name, report(desk.clock.now, capacity=capacity))
    keys = desk.come().keys
    assert keys is not None
    desk.quarantine.sent("before", keys.whole, ("z",))
    desk.quarantine.crashed("z")
    return desk


async def test_all_copies_of_a_suspect_go_to_one_replica_or_nowhere() -> None:
    """However much room there is elsewhere: the second replica that it takes is the last."""
    desk = suspect_with_two_endpoints(capacity=3)
    places = set()
    for _ in range(3):
        exchange = desk.come()
        answer = desk.reception.offer(exchange)
        assert isinstance(answer, Placed)
        assert exchange.once
        places |= {each.name for each in desk.reception.send(exchange, answer)}
    assert len(places) == 1
    assert desk.reception.offer(desk.come()) is Refusal.UNDECIDED
    other = desk.come(body=b'{"prompt": "something else"}')
    assert isinstance(desk.reception.offer(other), Placed)
    desk.quarantine.crashed(places.pop())
    assert desk.reception.offer(desk.come()) is Refusal.QUARANTINED


async def test_a_suspect_whose_like_runs_where_nobody_is_sent_any_more_is_placed_elsewhere() -> (
    None
):
    desk = suspect_with_two_endpoints(capacity=3)
    first = desk.come()
    answer = desk.reception.offer(first)
    assert isinstance(answer, Placed)
    (place,) = desk.reception.send(first, answer)
    (rest,) = {"a", "b"} - {place.name}
    desk.fleet.set_endpoints([endpoint(place.name, terminating=True), endpoint(rest)])
    again = desk.reception.offer(desk.come())
    assert isinstance(again, Placed)
    assert again.endpoints[0].name == rest


async def test_a_request_that_becomes_a_suspect_while_it_waits_goes_where_its_like_runs() -> None:
    desk = suspect_with_two_endpoints(capacity=1)
    busy = [desk.come(body=b'{"prompt": "%d"}' % i) for i in range(2)]
    where = {}
    for each in busy:
        answer = desk.reception.offer(each)
        assert isinstance(answer, Placed)
        where[answer.endpoints[0].name] = each
    exchange, held = desk.hold()
    waits = asyncio.create_task(desk.reception.wait(exchange, held, 30))
    await asyncio.sleep(0)
    assert exchange.keys is not None
    desk.quarantine.sent("its like", exchange.keys.whole, ("a",))
    desk.reception.end(where["b"], well=True)
    assert await waits is Refusal.UNDECIDED, "there is room at b alone"
    assert desk.fleet.in_flight == 1
