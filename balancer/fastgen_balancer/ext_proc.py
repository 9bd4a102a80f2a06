"""Answers Envoy's question for each request: where to?"""

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf import struct_pb2

from fastgen_api.names import Header
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.dispatch import Held, Placed
from fastgen_balancer.envoy_listener import METADATA
from fastgen_balancer.envoy_routes import CLIENT_REQUEST_ID
from fastgen_balancer.exchange import Exchange, fields_of, own_id
from fastgen_balancer.member import Member
from fastgen_balancer.pick import Refusal
from fastgen_balancer.reception import ask_for_patience
from fastgen_balancer.refusal import header_mutation

PICK_KEY: Final = "pick"
"""Key, in the request's dynamic metadata, of the id under which we count it."""
DEPLOYMENT_KEY: Final = "deployment"
"""Key, in the same, of the deployment whose request it is."""


class ExternalProcessor(service.ExternalProcessorServicer):  # type: ignore[misc]
    """One stream of Envoy's per request: its headers, its body, then the response's headers."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    async def Process(  # noqa: N802
        self,
        request_iterator: AsyncIterator[messages.ProcessingRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[messages.ProcessingResponse]:
        exchange: Exchange | None = None
        try:
            async for message in request_iterator:
                kind = message.WhichOneof("request")
                if kind == "request_headers":
                    exchange = self._begin(message.request_headers)
                    if (told := self._arrivals.answer(exchange)) is not None:
                        yield told
                        continue
                    if exchange.generates and not message.request_headers.end_of_stream:
                        yield self._await_body(exchange)
                        continue
                    refusal = self._read(exchange, b"")
                    async for answer in self._place(exchange, refusal, in_body=False):
                        yield answer
                elif kind == "request_body" and exchange is not None:
                    refusal = self._read(exchange, message.request_body.body)
                    # A request may wait for long: its body need not.
                    del message
                    async for answer in self._place(exchange, refusal, in_body=True):
                        yield answer
                elif kind == "response_headers":
                    if exchange is not None:
                        headers = fields_of(message.response_headers.headers)
                        exchange.begin_answer(headers)
                        if exchange.member is not None:
                            replica = headers.get(Header.REPLICA)
                            exchange.member.reception.first_byte(exchange, headers, replica)
                    yield messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        finally:
            # Of a client that left this early, the access log need not know the pick. Once the
            # answer has begun, it ends the request in the books.
            if exchange is not None and exchange.member is not None and not exchange.answered:
                exchange.member.reception.end(exchange, well=False)

    def _begin(self, message: messages.HttpHeaders) -> Exchange:
        headers = fields_of(message.headers)
        return self._arrivals.begin(Exchange, headers, headers.get(CLIENT_REQUEST_ID, ""))

    def _await_body(self, exchange: Exchange) -> messages.ProcessingResponse:
        common = messages.CommonResponse(header_mutation=header_mutation(own_id(exchange)))
        return messages.ProcessingResponse(
            request_headers=messages.HeadersResponse(response=common)
        )

    def _read(self, exchange: Exchange, body: bytes) -> Refusal | None:
        if exchange.generates:
            return self._arrivals.read(exchange, body)
        return self._arrivals.assign(exchange, None)

    async def _place(
        self, exchange: Exchange, refusal: Refusal | None, *, in_body: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        """Says where to, or no; before a wait it asks Envoy for patience."""
        member = exchange.member
        if refusal is not None or member is None:
            yield self._arrivals.refuse(exchange, refusal or Refusal.NO_ENDPOINTS)
            return
        answer = member.reception.offer(exchange)
        if isinstance(answer, Held):
            seconds = member.reception.patience(exchange, answer)
            try:
                yield ask_for_patience(seconds)
            except GeneratorExit:
                member.reception.abandon(exchange, answer)
                raise
            answer = await member.reception.wait(exchange, answer, seconds)
        if isinstance(answer, Refusal):
            yield member.reception.refuse(exchange, answer)
        else:
            yield self._instruction(exchange, member, answer, in_body=in_body)

    def _instruction(
        self, exchange: Exchange, member: Member, placed: Placed, *, in_body: bool
    ) -> messages.ProcessingResponse:
        member.reception.send(exchange, placed)
        common = messages.CommonResponse(
            header_mutation=header_mutation(
                {
                    Header.DEPLOYMENT: member.name,
                    Header.ENDPOINT: ",".join(
                        e.grpc_address if exchange.is_grpc else e.http_address
                        for e in placed.endpoints
                    ),
                    **member.reception.told(exchange),
                    **({Header.ONCE: "1"} if exchange.once else {}),
                    **own_id(exchange),
                }
            ),
            # The route was chosen before it was known whose the request is.
            clear_route_cache=True,
        )
        mark = struct_pb2.Struct()
        mark.update({METADATA: {PICK_KEY: exchange.id, DEPLOYMENT_KEY: member.name}})
        if in_body:
            body = messages.BodyResponse(response=common)
            return messages.ProcessingResponse(request_body=body, dynamic_metadata=mark)
        headers = messages.HeadersResponse(response=common)
        return messages.ProcessingResponse(request_headers=headers, dynamic_metadata=mark)
