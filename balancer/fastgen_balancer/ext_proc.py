"""Answers Envoy's question for each request: where to?"""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf import duration_pb2, struct_pb2

from fastgen_api.names import Header, is_request_id
from fastgen_balancer import estimate
from fastgen_balancer.deadline import timeout_seconds
from fastgen_balancer.dispatch import Dispatcher, Held, Placed
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES, METADATA
from fastgen_balancer.envoy_routes import CLIENT_REQUEST_ID
from fastgen_balancer.estimate import MalformedBodyError, Size
from fastgen_balancer.exchange import Exchange, own_id
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.metrics import Metrics
from fastgen_balancer.outcome import outcome_of_abandoned
from fastgen_balancer.pick import Refusal, Request
from fastgen_balancer.quarantine import Quarantine, Verdict
from fastgen_balancer.refusal import header_mutation, immediate_response
from fastgen_balancer.settings import MAX_HOLD_SECONDS, Settings

PICK_KEY: Final = "pick"
"""Key, in the request's dynamic metadata, of the id under which we count it."""
HOLD_MARGIN_SECONDS: Final = 1.0
UNAVAILABLE: Final = str(grpc.StatusCode.UNAVAILABLE.value[0])


class ExternalProcessor(service.ExternalProcessorServicer):  # type: ignore[misc]
    """One stream of Envoy's per request: its headers, its body, then the response's headers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: Fleet,
        quarantine: Quarantine,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: Callable[[], Settings],
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._quarantine = quarantine
        self._metrics = metrics
        self._clock = clock
        self._settings = settings
        self._tokens_per_byte = estimate.FIRST_TOKENS_PER_BYTE
        # Ids differ from those of a predecessor, whose log entries may still come.
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

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
                    if exchange.generates and not message.request_headers.end_of_stream:
                        yield self._await_body(exchange)
                        continue
                    async for answer in self._place(exchange, b"", in_body=False):
                        yield answer
                elif kind == "request_body" and exchange is not None:
                    body = message.request_body.body
                    del message
                    async for answer in self._place(exchange, body, in_body=True):
                        yield answer
                elif kind == "response_headers":
                    if exchange is not None:
                        exchange.answered = True
                        self._note_first_byte(exchange, _headers(message.response_headers))
                    yield messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        finally:
            # Of a client that left this early, the access log need not know the pick.
            if exchange is not None and not exchange.answered:
                self._fleet.end(exchange.id)
                self._quarantine.ended(exchange.id, well=False)
                self._dispatcher.pump()

    def _begin(self, message: messages.HttpHeaders) -> Exchange:
        headers = _headers(message)
        named = headers.get(CLIENT_REQUEST_ID, "")
        now, timeout = self._clock(), timeout_seconds(headers)
        return Exchange(
            id=f"{self._prefix}-{next(self._numbers)}",
            method=headers.get(":method", ""),
            path=headers.get(":path", ""),
            is_grpc=headers.get("content-type", "").startswith("application/grpc"),
            size=Size(0),
            began_at=now,
            deadline=None if timeout is None else now + timeout,
            client_id=named if is_request_id(named) else None,
        )

    def _await_body(self, exchange: Exchange) -> messages.ProcessingResponse:
        common = messages.CommonResponse(header_mutation=header_mutation(own_id(exchange)))
        return messages.ProcessingResponse(
            request_headers=messages.HeadersResponse(response=common)
        )

    def _read(self, exchange: Exchange, body: bytes) -> Refusal | None:
        """Notes the size and keys of a whole request, or says why it goes nowhere."""
        exchange.began_at = self._clock()
        if len(body) > MAX_BODY_BYTES:
            return Refusal.TOO_LARGE
        try:
            reading = estimate.read(body, is_grpc=exchange.is_grpc)
        except MalformedBodyError:
            return Refusal.MALFORMED
        exchange.size, exchange.keys = reading.size, reading.keys
        return None

    async def _place(
        self, exchange: Exchange, body: bytes, *, in_body: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        """Says where to, or no; before a wait it asks Envoy for patience."""
        if exchange.generates and (refusal := self._read(exchange, body)) is not None:
            yield self._refuse(exchange, refusal)
            return
        del body
        if (refusal := self._judge(exchange)) is not None:
            yield self._refuse(exchange, refusal)
            return
        answer = self._dispatcher.offer(exchange.id, self._request(exchange))
        if isinstance(answer, Held):
            seconds = self._patience(exchange, answer)
            patience = duration_pb2.Duration()
            patience.FromMilliseconds(round((seconds + HOLD_MARGIN_SECONDS) * 1000))
            try:
                yield messages.ProcessingResponse(override_message_timeout=patience)
            except GeneratorExit:
                self._abandon(exchange, answer)
                raise
            answer = await self._wait(exchange, answer, seconds)
            if isinstance(answer, Placed) and (refusal := self._judge(exchange)) is not None:
                # Another client's same prompt has crashed replicas meanwhile.
                self._fleet.end(exchange.id)
                self._dispatcher.pump()
                answer = refusal
        if isinstance(answer, Refusal):
            yield self._refuse(exchange, answer)
            return
        exchange.placed_at = self._clock()
        self._metrics.picked()
        yield self._instruction(exchange, answer, in_body=in_body)

    def _patience(self, exchange: Exchange, held: Held) -> float:
        """Longest stay in the queue, seconds."""
        settings = self._settings()
        longest = settings.hold_seconds if held.without_endpoint else settings.max_wait_seconds
        longest = min(longest, MAX_HOLD_SECONDS)
        if exchange.deadline is not None:
            longest = min(longest, exchange.deadline - self._clock())
        return max(0.0, longest)

    def _request(self, exchange: Exchange) -> Request:
        tokens = estimate.tokens_of(exchange.size, self._tokens_per_byte)
        keys = exchange.keys if self._settings().prefers_prefix else None
        opening = keys.opening if keys else None
        return Request(exchange.generates, tokens, opening, exchange.deadline)

    def _judge(self, exchange: Exchange) -> Refusal | None:
        """Refuses what has crashed replicas; what may have is sent to one only."""
        if exchange.keys is None:
            return None
        verdict = self._quarantine.verdict(exchange.keys.whole)
        exchange.once = verdict is Verdict.SUSPECT
        if verdict is Verdict.CONVICTED:
            return Refusal.QUARANTINED
        return Refusal.UNDECIDED if verdict is Verdict.UNDECIDED else None

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> messages.ProcessingResponse:
        self._metrics.refused(refusal, counted=exchange.generates)
        seconds = None
        if refusal in (Refusal.QUARANTINED, Refusal.UNDECIDED) and exchange.keys is not None:
            seconds = math.ceil(self._quarantine.seconds_left(exchange.keys.whole))
        elif refusal in (Refusal.FULL, Refusal.DEADLINE):
            seconds = self._dispatcher.retry_after_seconds()
        response = immediate_response(
            refusal, is_grpc=exchange.is_grpc, retry_after_seconds=seconds
        )
        return messages.ProcessingResponse(immediate_response=response)

    async def _wait(self, exchange: Exchange, held: Held, seconds: float) -> Placed | Refusal:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(held.placed)
        except TimeoutError:
            return held.placed.result() if held.placed.done() else self._dispatcher.withdraw(held)
        except asyncio.CancelledError:
            self._abandon(exchange, held)
            raise
        finally:
            held.placed.cancel()

    def _abandon(self, exchange: Exchange, held: Held) -> None:
        """Takes off the queue a request whose client left: Envoy closed its stream."""
        self._dispatcher.withdraw(held)
        if held.placed.done():
            self._fleet.end(held.id)
        waited = self._clock() - exchange.began_at
        self._metrics.ended(outcome_of_abandoned(waited, self._settings().ttft_seconds))

    def _instruction(
        self, exchange: Exchange, placed: Placed, *, in_body: bool
    ) -> messages.ProcessingResponse:
        waited = (self._clock() - exchange.began_at) * 1000
        common = messages.CommonResponse(
            header_mutation=header_mutation(
                {
                    Header.ENDPOINT: ",".join(
                        e.grpc_address if exchange.is_grpc else e.http_address
                        for e in placed.endpoints
                    ),
                    Header.WAITED: str(round(waited)),
                    **({Header.ONCE: "1"} if exchange.once else {}),
                    **own_id(exchange),
                }
            )
        )
        if exchange.keys is not None:
            tried = placed.endpoints[:1] if exchange.once else placed.endpoints
            names = tuple(endpoint.name for endpoint in tried)
            self._quarantine.sent(exchange.id, exchange.keys.whole, names)
        mark = struct_pb2.Struct()
        mark.update({METADATA: {PICK_KEY: exchange.id}})
        if in_body:
            body = messages.BodyResponse(response=common)
            return messages.ProcessingResponse(request_body=body, dynamic_metadata=mark)
        headers = messages.HeadersResponse(response=common)
        return messages.ProcessingResponse(request_headers=headers, dynamic_metadata=mark)

    def _note_first_byte(self, exchange: Exchange, headers: dict[str, str]) -> None:
        if not exchange.generates or exchange.placed_at is None:
            return
        if (replica := headers.get(Header.REPLICA)) is not None:
            self._fleet.move(exchange.id, replica)
            is_known = self._fleet.endpoint(replica) is not None
            self._quarantine.answered(exchange.id, replica if is_known else None)
        if headers.get(":status") == "503" or headers.get("grpc-status") == UNAVAILABLE:
            self._quarantine.failed(exchange.id)
        # A gRPC refusal is nothing but its status, which comes as a header.
        if headers.get(":status") == "200" and "grpc-status" not in headers:
            self._fleet.first_byte(exchange.id)
            self._metrics.first_byte(self._clock() - exchange.began_at)
        tokens = headers.get(Header.PROMPT_TOKENS, "")
        if tokens.isdecimal():
            self._tokens_per_byte = estimate.learn(
                self._tokens_per_byte, exchange.size, int(tokens)
            )


def _headers(message: messages.HttpHeaders) -> dict[str, str]:
    return {
        header.key: header.raw_value.decode("latin-1") or header.value
        for header in message.headers.headers
    }
