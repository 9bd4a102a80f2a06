"""A picker of two endpoints, and what gateways tell it by the endpoint-picker protocol."""

from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from balancer_books import Clock, Told, endpoint, report
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from prometheus_client import CollectorRegistry

from fastgen_api.names import Metric, Outcome
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.endpoint_picker import EndpointPicker
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.member import Identity, Member
from fastgen_balancer.metrics import UnplacedMetrics
from fastgen_balancer.roster import Entry, Roster
from fastgen_balancer.settings import Settings

BODY = b'{"prompt": "once upon a time", "max_tokens": 5}'
DUPLEX, BUFFERED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED


class Desk:
    """A picker of two endpoints, of which gateways ask."""

    def __init__(self, capacity: int = 8, ttft_seconds: float | None = None) -> None:
        self.clock = Clock()
        settings = Settings(max_queued_requests=100, ttft_seconds=ttft_seconds)
        self.folder = TemporaryDirectory()
        member = Member(Path(self.folder.name), Identity("d", "n"), settings, self.clock)
        (self.registry,) = member.registries()
        self.fleet = member.fleet
        self.fleet.set_endpoints([endpoint("a"), endpoint("b")])
        self.capacity = capacity
        self.hear()
        self.quarantine, self.dispatcher = member.quarantine, member.dispatcher
        self.reception = member.reception
        roster = Roster((Entry("d", "d", settings),))
        nobody = UnplacedMetrics(CollectorRegistry(), "n")
        self.arrivals = Arrivals(lambda: roster, {"d": member}, nobody, self.clock)
        self.picker = EndpointPicker(self.arrivals, self.clock, Random(1))

    def hear(self) -> None:
        for name in "ab":
            self.fleet.hear(name, report(self.clock.now, capacity=self.capacity))

    def process(self, *parts: Any) -> AsyncGenerator[messages.ProcessingResponse, None]:
        """A gateway's stream, which tells these messages and then ends."""
        process: Any = self.picker.Process
        stream: AsyncGenerator[messages.ProcessingResponse, None] = process(None, Told(*parts))
        return stream

    async def call(self, *parts: Any) -> list[messages.ProcessingResponse]:
        return [each async for each in self.process(*parts)]

    def counted(self) -> dict[Outcome, int]:
        """How often each outcome was counted here."""
        found = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == Metric.REQUESTS and sample.value:
                    found[Outcome(sample.labels["outcome"])] = int(sample.value)
        return found

    def tokens(self) -> int:
        """The cost of a request of our own Envoy's."""
        exchange = self.arrivals.begin(Exchange, {":method": "POST", ":path": "/v1/x"}, "")
        assert self.arrivals.read(exchange, BODY) is None
        return self.reception.request(exchange).tokens


def asks(
    mode: int = DUPLEX, path: str = "/v1/completions", method: str = "POST"
) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.protocol_config.request_body_mode = mode
    for key, value in ((":method", method), (":path", path)):
        request.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return request


def sends(body: bytes = BODY, *, ends: bool = True) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.request_body.body, request.request_body.end_of_stream = body, ends
    return request


def tells(status: str, served: str = "", **headers: str) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    told = {":status": status} | {key.replace("_", "-"): value for key, value in headers.items()}
    for key, value in told.items():
        request.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    if served:
        lb = request.metadata_context.filter_metadata["envoy.lb"]
        lb.update({"x-gateway-destination-endpoint-served": served})
    return request


def headers_of(answer: messages.ProcessingResponse) -> dict[str, bytes]:
    """What an answer to a request's headers sets."""
    mutation = answer.request_headers.response.header_mutation
    return {each.header.key: each.header.raw_value for each in mutation.set_headers}
