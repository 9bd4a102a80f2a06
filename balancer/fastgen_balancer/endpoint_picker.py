"""Answers other people's gateways: where to, by the endpoint-picker protocol."""

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

from fastgen_api.names import Header
from fastgen_balancer import endpoint_picker_messages as protocol
from fastgen_balancer.account import Sent
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.dispatch import Answer, Held, Placed
from fastgen_balancer.endpoint_picker_exchange import GatewayExchange, entry_of
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.estimate import Size
from fastgen_balancer.exchange import fields_of, number_of
from fastgen_balancer.member import Member
from fastgen_balancer.outcome import is_failure, is_success, outcome_of
from fastgen_balancer.pick import Refusal, pick
from fastgen_balancer.reception import ask_for_patience


class EndpointPicker(service.ExternalProcessorServicer):  # type: ignore[misc]
    """One stream of a gateway's per request: headers and bodies, both ways."""

    def __init__(
        self,
        arrivals: Arrivals,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        self._arrivals = arrivals
        self._clock = clock
        self._rng = rng

    async def Process(  # noqa: N802
        self,
        request_iterator: AsyncIterator[messages.ProcessingRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[messages.ProcessingResponse]:
        exchange: GatewayExchange | None = None
        try:
            async for message in request_iterator:
                if exchange is None and message.HasField("request_headers"):
                    exchange = self._begin(message)
                if exchange is None or exchange.refused:
                    continue
                async for answer in self._answer(exchange, message):
                    yield answer
        finally:
            if exchange is not None:
                self._end(exchange)

    def _begin(self, message: messages.ProcessingRequest) -> GatewayExchange:
        headers = fields_of(message.request_headers.headers)
        named = headers.get(Header.REQUEST_ID, "")
        exchange = self._arrivals.begin(GatewayExchange, headers, named)
        exchange.request_body_mode = message.protocol_config.request_body_mode
        exchange.response_body_mode = message.protocol_config.response_body_mode
        exchange.subset = protocol.subset_of(message)
        if exchange.generates:
            # Until there is a body to look at, the length that the client has named must do.
            exchange.size = Size(number_of(headers.get("content-length", "")) or 0)
        return exchange

    def _answer(
        self, exchange: GatewayExchange, message: messages.ProcessingRequest
    ) -> AsyncIterator[messages.ProcessingResponse]:
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            return self._take_headers(exchange, ends=message.request_headers.end_of_stream)
        if kind == "request_body":
            return self._take_body(exchange, message.request_body)
        if kind == "request_trailers":
            return self._take_trailers(exchange)
        return _one(self._take_response(exchange, message, kind))

    async def _take_headers(
        self, exchange: GatewayExchange, *, ends: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        if (told := self._arrivals.answer(exchange)) is not None:
            exchange.refused = True
            yield told
            return
        mode = exchange.request_body_mode
        if exchange.generates and not ends and protocol.is_duplex(mode):
            return
        if exchange.generates and not ends and protocol.is_buffered(mode):
            yield messages.ProcessingResponse(request_headers=messages.HeadersResponse())
            return
        has_no_body = exchange.generates and ends
        # A body that the gateway does not show tells no model; a header may.
        refusal = (
            self._arrivals.read(exchange, b"")
            if has_no_body
            else self._arrivals.assign(exchange, None)
        )
        async for answer in self._place(exchange, refusal, in_body=False):
            yield answer

    async def _take_body(
        self, exchange: GatewayExchange, part: messages.HttpBody
    ) -> AsyncIterator[messages.ProcessingResponse]:
        duplex = protocol.is_duplex(exchange.request_body_mode)
        if exchange.placed:
            if duplex:
                for piece in protocol.request_pieces(part.body, ends=part.end_of_stream):
                    yield piece
            else:
                yield messages.ProcessingResponse(request_body=messages.BodyResponse())
            return
        exchange.body += part.body
        # One that is too long is refused before it is whole.
        if part.end_of_stream or not duplex or len(exchange.body) > MAX_BODY_BYTES:
            async for answer in self._place_read(exchange, ends=True):
                yield answer

    async def _take_trailers(
        self, exchange: GatewayExchange
    ) -> AsyncIterator[messages.ProcessingResponse]:
        if not exchange.placed:
            async for answer in self._place_read(exchange, ends=False):
                yield answer
        if not exchange.refused:
            yield messages.ProcessingResponse(request_trailers=messages.TrailersResponse())

    async def _place_read(
        self, exchange: GatewayExchange, *, ends: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        """Places a request whose body has come whole, and sends that on where it is ours to do."""
        duplex = protocol.is_duplex(exchange.request_body_mode)
        body = bytes(exchange.body)
        exchange.body.clear()
        refusal = self._arrivals.read(exchange, body)
        async for answer in self._place(exchange, refusal, in_body=not duplex):
            yield answer
        if duplex and exchange.placed:
            for piece in protocol.request_pieces(body, ends=ends):
                yield piece

    async def _place(
        self, exchange: GatewayExchange, refusal: Refusal | None, *, in_body: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        member = exchange.member
        if refusal is not None or member is None:
            exchange.refused = True
            yield self._arrivals.refuse(exchange, refusal or Refusal.NO_ENDPOINTS)
            return
        answer = self._offer(exchange, member)
        if isinstance(answer, Held):
            seconds = member.reception.patience(exchange, answer)
            # In full duplex there is nothing that the gateway would wait for.
            if not protocol.is_duplex(exchange.request_body_mode):
                try:
                    yield ask_for_patience(seconds)
                except GeneratorExit:
                    member.reception.abandon(exchange, answer)
                    raise
            answer = await member.reception.wait(exchange, answer, seconds)
        if isinstance(answer, Refusal):
            exchange.refused = True
            yield member.reception.refuse(exchange, answer)
            return
        tried = member.reception.send(exchange, answer)
        found = (
            protocol.address_in(each, exchange.subset, is_grpc=exchange.is_grpc) for each in tried
        )
        yield protocol.destination(
            [address for address in found if address is not None],
            member.reception.told(exchange),
            in_body=in_body,
        )

    def _offer(self, exchange: GatewayExchange, member: Member) -> Answer:
        if exchange.subset is None:
            return member.reception.offer(exchange)
        refusal = member.reception.judge(exchange)
        return refusal or self._pick_among(exchange, member, exchange.subset)

    def _pick_among(
        self, exchange: GatewayExchange, member: Member, subset: frozenset[str]
    ) -> Placed | Refusal:
        """Picks from the gateway's subset; such a request waits for nobody, and nobody for it."""
        allowed = {
            each.name: each
            for each in member.fleet.endpoints
            if protocol.address_in(each, subset, is_grpc=exchange.is_grpc) is not None
        }
        candidates = [each for each in member.fleet.candidates() if each.name in allowed]
        request = member.reception.request(exchange)
        answer = pick(candidates, request, self._rng)
        if isinstance(answer, Refusal):
            return answer
        if request.generates:
            sent = Sent(exchange.id, request.tokens, self._clock())
            member.fleet.send(answer.order[0], sent)
        return Placed(tuple(allowed[name] for name in answer.order))

    def _take_response(
        self, exchange: GatewayExchange, message: messages.ProcessingRequest, kind: str | None
    ) -> messages.ProcessingResponse:
        if kind == "response_headers":
            headers = fields_of(message.response_headers.headers)
            exchange.served = protocol.served_of(message)
            exchange.begin_answer(headers)
            if (member := exchange.member) is not None:
                replica = self._server(exchange, member, headers)
                member.reception.first_byte(exchange, headers, replica)
            return messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        if kind == "response_trailers":
            exchange.end_answer(fields_of(message.response_trailers.trailers))
            return messages.ProcessingResponse(response_trailers=messages.TrailersResponse())
        if protocol.is_duplex(exchange.response_body_mode):
            return protocol.response_piece(message.response_body)
        return messages.ProcessingResponse(response_body=messages.BodyResponse())

    def _server(
        self, exchange: GatewayExchange, member: Member, headers: dict[str, str]
    ) -> str | None:
        """Name of the replica that answers, by the gateway's word, else by its own."""
        for endpoint in member.fleet.endpoints:
            if exchange.served in (endpoint.http_address, endpoint.grpc_address):
                return endpoint.name
        return headers.get(Header.REPLICA)

    def _end(self, exchange: GatewayExchange) -> None:
        entry = entry_of(exchange, self._clock())
        well = entry is not None and is_success(entry)
        if (member := exchange.member) is None:
            return
        picked = member.reception.end(exchange, well=well)
        if entry is None:
            return
        outcome = outcome_of(entry)
        if outcome is not None:
            member.metrics.ended(outcome)
        if picked is not None and exchange.served is not None:
            member.fleet.answered(picked, well=not is_failure(entry))


async def _one(
    answer: messages.ProcessingResponse,
) -> AsyncIterator[messages.ProcessingResponse]:
    yield answer
