"""Our own Envoy's calls, message by message: who waits, who leaves, and what the books say then."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from balancer_books import Clock, Envoy, endpoint, report
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from prometheus_client import CollectorRegistry

from fastgen_api.names import Header, Metric, MetricLabel
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.envoy_routes import CLIENT_REQUEST_ID
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.member import Identity, Member
from fastgen_balancer.metrics import UnplacedMetrics
from fastgen_balancer.roster import Entry, Roster
from fastgen_balancer.settings import Settings


class Desk:
    """A picker of one endpoint with room for one request."""

    def __init__(self) -> None:
        self.clock, settings = Clock(), Settings(max_queued_requests=10)
        self.folder = TemporaryDirectory()
        self.member = Member(Path(self.folder.name), Identity("d", "n"), settings, self.clock)
        self.member.fleet.set_endpoints([endpoint("a")])
        self.member.fleet.hear("a", report(self.clock.now, capacity=1))
        roster = Roster((Entry("d", "d", settings),))
        nobody = UnplacedMetrics(CollectorRegistry(), "n")
        self.arrivals = Arrivals(lambda: roster, {"d": self.member}, nobody, self.clock)

    def ask(self, request_id: str = "") -> Envoy:
        """A call whose request has come whole."""
        envoy = Envoy(self.arrivals)
        own = {CLIENT_REQUEST_ID: request_id}
        envoy.tell(heads({":method": "POST", ":path": "/v1/completions"} | own), sends())
        return envoy

    def books(self) -> tuple[int, int]:
        """Requests in flight, and in the queue."""
        return self.member.fleet.in_flight, self.member.dispatcher.queued

    def excluded(self) -> float | None:
        labels = {MetricLabel.DEPLOYMENT: "d", MetricLabel.NAMESPACE: "n", "outcome": "excluded"}
        return self.member.registries()[0].get_sample_value(Metric.REQUESTS, labels)


def heads(headers: dict[str, str], *, is_answer: bool = False) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    told = request.response_headers if is_answer else request.request_headers
    for key, value in headers.items():
        told.headers.headers.add(key=key, raw_value=value.encode())
    return request


def sends() -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.request_body.body = b'{"prompt": "once upon a time"}'
    request.request_body.end_of_stream = True
    return request


async def turns(number: int = 20) -> None:
    """Lets everybody go on who waits for nothing but their turn in the loop."""
    for _ in range(number):
        await asyncio.sleep(0)


def kinds(envoy: Envoy) -> list[str]:
    return [
        "patience"
        if each.HasField("override_message_timeout")
        else str(each.WhichOneof("response"))
        for each in envoy.answers
    ]


def sets(answer: messages.ProcessingResponse) -> dict[str, str]:
    mutation = answer.request_body.response.header_mutation
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


async def test_a_request_is_told_where_to_and_its_answer_goes_on() -> None:
    desk = Desk()
    envoy = desk.ask()
    headers = sets(envoy.answers[-1])
    assert (headers[Header.DEPLOYMENT], headers[Header.ENDPOINT]) == ("d", "10.0.0.1:8000")
    assert envoy.answers[-1].request_body.response.clear_route_cache
    mark = envoy.answers[-1].dynamic_metadata.fields["fastgen"].struct_value
    assert mark.fields["deployment"].string_value == "d"
    envoy.tell(heads({":status": "200", Header.REPLICA: "a"}, is_answer=True))
    assert kinds(envoy) == ["request_headers", "request_body", "response_headers"]
    envoy.processor.left()
    # It is the access log that tells of its end.
    assert desk.books() == (1, 0)
    desk.member.fleet.end(mark.fields["pick"].string_value)
    assert desk.books() == (0, 0)


async def test_what_is_told_of_one_request_alone_is_told_with_the_rest() -> None:
    desk = Desk()
    prompt = desk.arrivals.begin(Exchange, {":method": "POST", ":path": "/v1/completions"}, "")
    assert desk.arrivals.read(prompt, sends().request_body.body) is None
    assert prompt.keys is not None
    desk.member.quarantine.sent("before", prompt.keys.whole, ("z",))
    desk.member.quarantine.crashed("z")
    envoy = desk.ask("mine")
    named = envoy.answers[0].request_headers.response.header_mutation.set_headers
    assert [(each.header.key, each.header.raw_value) for each in named] == [
        (Header.REQUEST_ID, b"mine")
    ]
    assert sets(envoy.answers[1]) == {
        Header.DEPLOYMENT: "d",
        Header.ENDPOINT: "10.0.0.1:8000",
        Header.WAITED: "0",
        Header.ONCE: "1",
        Header.REQUEST_ID: "mine",
    }
    assert envoy.answers[1].request_body.response.clear_route_cache


async def test_who_leaves_before_an_answer_has_no_place() -> None:
    desk = Desk()
    envoy = desk.ask()
    assert desk.books() == (1, 0)
    envoy.processor.left()
    assert desk.books() == (0, 0)


async def test_who_waits_is_told_once_there_is_room() -> None:
    desk = Desk()
    first, second = desk.ask(), desk.ask()
    assert kinds(second) == ["request_headers", "patience"]
    assert desk.books() == (1, 1)
    first.processor.left()
    await turns()
    assert kinds(second) == ["request_headers", "patience", "request_body"]
    assert desk.books() == (1, 0)


@pytest.mark.parametrize("number", [0, 3], ids=["at once", "after a while"])
async def test_who_leaves_the_queue_is_out_of_the_books(number: int) -> None:
    desk = Desk()
    first, second = desk.ask(), desk.ask()
    await turns(number)
    second.processor.left()
    await turns()
    assert desk.books() == (1, 0)
    assert desk.excluded() == 1
    first.processor.left()
    assert desk.books() == (0, 0)
    assert not second.failures
    assert kinds(second) == ["request_headers", "patience"]


async def test_of_a_crash_the_other_pods_know_before_the_client() -> None:
    desk, told = Desk(), asyncio.Event()

    async def spread() -> None:
        await told.wait()

    desk.member.reception.spread = spread
    envoy = desk.ask()
    envoy.tell(heads({":status": "503"}, is_answer=True))
    await asyncio.sleep(0)
    assert kinds(envoy) == ["request_headers", "request_body"]
    told.set()
    await turns()
    assert kinds(envoy)[-1] == "response_headers"


async def test_what_goes_wrong_while_a_request_waits_is_told() -> None:
    desk = Desk()

    async def spread() -> None:
        raise RuntimeError("as it was asked to")

    desk.member.reception.spread = spread
    envoy = desk.ask()
    envoy.tell(heads({":status": "503"}, is_answer=True))
    await turns()
    assert len(envoy.failures) == 1
    assert kinds(envoy) == ["request_headers", "request_body"]
