"""Answers Envoy's question for each request: where to?"""

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Final

from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from fastgen_api.names import Header
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.calls import Caller
from fastgen_balancer.dispatch import Answer, Held, Placed
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
METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
REQUEST_GOES_ON: Final = messages.ProcessingResponse(
    request_headers=messages.HeadersResponse()
).SerializeToString()
ANSWER_GOES_ON: Final = messages.ProcessingResponse(
    response_headers=messages.HeadersResponse()
).SerializeToString()


class ExternalProcessor:
    """One call of Envoy's per request: its headers, its body, then the response's headers.

    Invariant: while `_task` waits for an answer, Envoy waits as well.
    """

    def __init__(self, arrivals: Arrivals, caller: Caller) -> None:
        self._arrivals = arrivals
        self._caller = caller
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._unwatched: Held | None = None
        """A request in the queue whose task has not begun to look after it."""
        self._has_left = False

    def receive(self, message: bytes) -> None:
        request = messages.ProcessingRequest.FromString(message)
        kind = request.WhichOneof("request")
        if kind == "request_headers":
            self._take_headers(request.request_headers)
        elif kind == "request_body" and self._exchange is not None:
            # A request may wait for long: its body need not.
            refusal = self._read(self._exchange, request.request_body.body)
            self._place(self._exchange, refusal, in_body=True)
        elif kind == "response_headers":
            self._take_answer(request.response_headers)

    def left(self) -> None:
        """Envoy has closed the call: the answer has begun, or its client is gone."""
        self._has_left = True
        if self._task is None:
            self._settle()
            return
        exchange, held = self._exchange, self._unwatched
        if held is not None and exchange is not None and exchange.member is not None:
            exchange.member.reception.abandon(exchange, held)
        self._task.cancel()

    def _take_headers(self, message: messages.HttpHeaders) -> None:
        headers = fields_of(message.headers)
        exchange = self._arrivals.begin(Exchange, headers, headers.get(CLIENT_REQUEST_ID, ""))
        self._exchange = exchange
        if (told := self._arrivals.answer(exchange)) is not None:
            self._say(told)
        elif exchange.generates and not message.end_of_stream:
            own = own_id(exchange)
            self._caller.send(_headers(own, in_body=False) if own else REQUEST_GOES_ON)
        else:
            self._place(exchange, self._read(exchange, b""), in_body=False)

    def _read(self, exchange: Exchange, body: bytes) -> Refusal | None:
        if exchange.generates:
            return self._arrivals.read(exchange, body)
        return self._arrivals.assign(exchange, None)

    def _place(self, exchange: Exchange, refusal: Refusal | None, *, in_body: bool) -> None:
        """Says where to, or no; before a wait it asks Envoy for patience."""
        member = exchange.member
        if refusal is not None or member is None:
            self._say(self._arrivals.refuse(exchange, refusal or Refusal.NO_ENDPOINTS))
            return
        answer = member.reception.offer(exchange)
        if isinstance(answer, Held):
            seconds = member.reception.patience(exchange, answer)
            self._say(ask_for_patience(seconds))
            self._unwatched = answer
            self._await(self._wait(exchange, member, answer, seconds, in_body=in_body))
        else:
            self._tell(exchange, member, answer, in_body=in_body)

    async def _wait(
        self, exchange: Exchange, member: Member, held: Held, seconds: float, *, in_body: bool
    ) -> None:
        self._unwatched = None
        answer = await member.reception.wait(exchange, held, seconds)
        self._tell(exchange, member, answer, in_body=in_body)

    def _tell(self, exchange: Exchange, member: Member, answer: Answer, *, in_body: bool) -> None:
        if isinstance(answer, Placed):
            self._caller.send(_instruction(exchange, member, answer, in_body=in_body))
        elif isinstance(answer, Refusal):
            self._say(member.reception.refuse(exchange, answer))

    def _take_answer(self, message: messages.HttpHeaders) -> None:
        exchange = self._exchange
        if exchange is not None:
            headers = fields_of(message.headers)
            exchange.begin_answer(headers)
            if exchange.member is not None:
                reception, replica = exchange.member.reception, headers.get(Header.REPLICA)
                reception.first_byte(exchange, headers, replica)
                if reception.must_spread(exchange, replica):
                    self._await(self._spread(exchange.member))
                    return
        self._caller.send(ANSWER_GOES_ON)

    async def _spread(self, member: Member) -> None:
        await member.reception.spread()
        self._caller.send(ANSWER_GOES_ON)

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._caller.fail(error)
        if self._has_left:
            self._settle()

    def _settle(self) -> None:
        # Of a client that left this early, the access log need not know the pick. Once the
        # answer has begun, it ends the request in the books.
        exchange = self._exchange
        if exchange is not None and exchange.member is not None and not exchange.answered:
            exchange.member.reception.end(exchange, well=False)

    def _say(self, response: messages.ProcessingResponse) -> None:
        self._caller.send(response.SerializeToString())


def _instruction(exchange: Exchange, member: Member, placed: Placed, *, in_body: bool) -> bytes:
    """Where to. Much of it is the same for many requests, and is encoded once: encoded messages one
    after the other are one message, which has the fields of all."""
    member.reception.send(exchange, placed)
    address = ",".join(
        [each.grpc_address if exchange.is_grpc else each.http_address for each in placed.endpoints]
    )
    own = {
        **member.reception.waited(exchange),
        **member.reception.judged(exchange),
        **({Header.ONCE: "1"} if exchange.once else {}),
        **own_id(exchange),
    }
    return b"".join(
        (
            _way(member.name, address, in_body=in_body),
            _headers(own, in_body=in_body),
            _mark(exchange.id, member.name),
        )
    )


@lru_cache(maxsize=4096)
def _way(deployment: str, address: str, *, in_body: bool) -> bytes:
    # The route was chosen before it was known whose the request is.
    headers = {Header.DEPLOYMENT: deployment, Header.ENDPOINT: address}
    return _headers(headers, in_body=in_body, clears_route=True)


def _headers(headers: dict[str, str], *, in_body: bool, clears_route: bool = False) -> bytes:
    common = messages.CommonResponse(
        header_mutation=header_mutation(headers), clear_route_cache=clears_route
    )
    if in_body:
        response = messages.ProcessingResponse(request_body=messages.BodyResponse(response=common))
    else:
        told = messages.HeadersResponse(response=common)
        response = messages.ProcessingResponse(request_headers=told)
    return bytes(response.SerializeToString())


def _mark(pick_id: str, deployment: str) -> bytes:
    """By which the access log's entry is known."""
    response = messages.ProcessingResponse()
    fields = response.dynamic_metadata.fields[METADATA].struct_value.fields
    fields[PICK_KEY].string_value = pick_id
    fields[DEPLOYMENT_KEY].string_value = deployment
    return bytes(response.SerializeToString())
