"""Answers other people's gateways: where to, by the endpoint-picker protocol.

A gateway is not ours, and may be broken or worse. What it asks costs memory within bounds; what it
tells of answers ends its own requests in the books, and is no evidence of anything else. The
replicas count how its requests end; those that reach none are counted here.
"""

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

from fastgen_api.names import Header
from fastgen_balancer import endpoint_picker_messages as protocol
from fastgen_balancer.account import Sent
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.dispatch import Answer, Held, Placed
from fastgen_balancer.endpoint_picker_exchange import GatewayExchange
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.estimate import Size
from fastgen_balancer.exchange import fields_of, number_of
from fastgen_balancer.incoming import Incoming
from fastgen_balancer.member import Member
from fastgen_balancer.pick import Refusal, pick
from fastgen_balancer.reception import ask_for_patience

MAX_BODY_BYTES_HELD: Final = 128 * 1024 * 1024
"""Of the bodies of all gateways' requests that are not placed yet: they lie in this process."""


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
        self._held_bytes = 0
        """Sum of all exchanges' `held_bytes`."""

    async def Process(  # noqa: N802
        self,
        request_iterator: AsyncIterator[messages.ProcessingRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[messages.ProcessingResponse]:
        exchange: GatewayExchange | None = None
        try:
            async for message in Incoming[messages.ProcessingRequest](context):
                if exchange is None and message.HasField("request_headers"):
                    exchange = self._begin(message)
                if exchange is None or exchange.refused:
                    continue
                answers = self._answer(exchange, message)
                del message
                async for answer in answers:
                    yield answer
        finally:
            if exchange is not None:
                self._let_go(exchange)
                if exchange.member is not None:
                    exchange.member.reception.end(exchange, well=False)

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
        return self._take_response(exchange, message, kind)

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
        if self._held_bytes + len(part.body) > MAX_BODY_BYTES_HELD:
            self._let_go(exchange)
            yield self._refuse(exchange, Refusal.FULL)
            return
        exchange.body += part.body
        exchange.held_bytes += len(part.body)
        self._held_bytes += len(part.body)
        ends = part.end_of_stream
        # The message has the bytes as well.
        del part
        # One that is too long is refused before it is whole.
        if ends or not duplex or len(exchange.body) > MAX_BODY_BYTES:
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
        if not duplex:
            # The gateway has it: a request may wait for long, its body need not do so here.
            body = b""
            self._let_go(exchange)
        async for answer in self._place(exchange, refusal, in_body=not duplex):
            yield answer
        if duplex and exchange.placed:
            for piece in protocol.request_pieces(body, ends=ends):
                yield piece
        self._let_go(exchange)

    async def _place(
        self, exchange: GatewayExchange, refusal: Refusal | None, *, in_body: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        member = exchange.member
        if refusal is not None or member is None:
            yield self._refuse(exchange, refusal or Refusal.NO_ENDPOINTS)
            return
        answer = self._offer(exchange, member)
        told = member.reception.judged(exchange)
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
            told |= member.reception.waited(exchange)
        if isinstance(answer, Refusal):
            yield self._refuse(exchange, answer)
            return
        tried = member.reception.send(exchange, answer)
        found = (
            protocol.address_in(each, exchange.subset, is_grpc=exchange.is_grpc) for each in tried
        )
        addresses = [address for address in found if address is not None]
        try:
            yield protocol.destination(addresses, told, in_body=in_body)
        except GeneratorExit:
            member.reception.unreached(exchange)
            raise

    def _refuse(self, exchange: GatewayExchange, refusal: Refusal) -> messages.ProcessingResponse:
        exchange.refused = True
        return self._arrivals.refuse(exchange, refusal)

    def _let_go(self, exchange: GatewayExchange) -> None:
        """Of the body, which is refused, or on its way, or somebody else's to keep."""
        self._held_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
        exchange.body.clear()

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
        if (trial := member.reception.trial(exchange)) is not None:
            if trial not in allowed:
                return Refusal.UNDECIDED
            allowed = {trial: allowed[trial]}
        candidates = [each for each in member.fleet.candidates() if each.name in allowed]
        request = member.reception.request(exchange)
        answer = pick(candidates, request, self._rng)
        if isinstance(answer, Refusal):
            return answer
        if request.generates:
            sent = Sent(exchange.id, request.tokens, self._clock(), request.witnessed)
            member.fleet.send(answer.order[0], sent)
        return Placed(tuple(allowed[name] for name in answer.order))

    async def _take_response(
        self, exchange: GatewayExchange, message: messages.ProcessingRequest, kind: str | None
    ) -> AsyncIterator[messages.ProcessingResponse]:
        if kind == "response_headers":
            headers = fields_of(message.response_headers.headers)
            exchange.served = protocol.served_of(message)
            is_first = not exchange.answered
            exchange.begin_answer(headers)
            if (member := exchange.member) is not None:
                replica = self._server(exchange, member, headers)
                if is_first and exchange.is_unavailable and replica is None:
                    member.reception.unreached(exchange)
                await member.reception.answered(exchange, headers, replica)
            yield messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        elif kind == "response_trailers":
            yield messages.ProcessingResponse(response_trailers=messages.TrailersResponse())
        elif protocol.is_duplex(exchange.response_body_mode):
            yield protocol.response_piece(message.response_body)
        else:
            yield messages.ProcessingResponse(response_body=messages.BodyResponse())

    def _server(
        self, exchange: GatewayExchange, member: Member, headers: dict[str, str]
    ) -> str | None:
        """Name of the replica that answers, by the gateway's word, else by its own.

        Of a failure of the gateway's own making that word names the replica that it has lost.
        """
        own = headers.get(Header.REPLICA)
        if exchange.is_unavailable and own is None:
            return None
        for endpoint in member.fleet.endpoints:
            if exchange.served in (endpoint.http_address, endpoint.grpc_address):
                return endpoint.name
        return own
