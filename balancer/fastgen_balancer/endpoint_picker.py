"""Answers other people's gateways: where to, by the endpoint-picker protocol."""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf import duration_pb2

from fastgen_api.names import Header
from fastgen_balancer import endpoint_picker_messages as protocol
from fastgen_balancer import estimate
from fastgen_balancer.account import Sent
from fastgen_balancer.deadline import timeout_seconds
from fastgen_balancer.dispatch import Dispatcher, Held, Placed
from fastgen_balancer.endpoint_picker_exchange import Exchange, entry_of, fields_of
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.estimate import MalformedBodyError, Size
from fastgen_balancer.ext_proc import HOLD_MARGIN_SECONDS
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.metrics import Metrics
from fastgen_balancer.outcome import is_failure, is_success, outcome_of, outcome_of_abandoned
from fastgen_balancer.pick import Refusal, Request, pick
from fastgen_balancer.quarantine import Quarantine, Verdict
from fastgen_balancer.refusal import immediate_response
from fastgen_balancer.settings import MAX_HOLD_SECONDS, Settings


class EndpointPicker(service.ExternalProcessorServicer):  # type: ignore[misc]
    """One stream of a gateway's per request: headers and bodies, both ways."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: Fleet,
        quarantine: Quarantine,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: Callable[[], Settings],
        rng: Random,
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._quarantine = quarantine
        self._metrics = metrics
        self._clock = clock
        self._settings = settings
        self._rng = rng
        self._tokens_per_byte = estimate.FIRST_TOKENS_PER_BYTE
        self._prefix = f"g{secrets.token_hex(4)}"
        self._numbers = itertools.count()

    async def Process(  # noqa: N802
        self,
        request_iterator: AsyncIterator[messages.ProcessingRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[messages.ProcessingResponse]:
        exchange: Exchange | None = None
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

    def _begin(self, message: messages.ProcessingRequest) -> Exchange:
        modes = message.protocol_config
        headers = fields_of(message.request_headers.headers)
        now, timeout = self._clock(), timeout_seconds(headers)
        return Exchange(
            id=f"{self._prefix}-{next(self._numbers)}",
            headers=headers,
            request_body_mode=modes.request_body_mode,
            response_body_mode=modes.response_body_mode,
            subset=protocol.subset_of(message),
            began_at=now,
            size=Size(0),
            deadline=None if timeout is None else now + timeout,
        )

    def _answer(
        self, exchange: Exchange, message: messages.ProcessingRequest
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
        self, exchange: Exchange, *, ends: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        mode = exchange.request_body_mode
        if exchange.generates and not ends and protocol.is_duplex(mode):
            return
        if exchange.generates and not ends and protocol.is_buffered(mode):
            yield messages.ProcessingResponse(request_headers=messages.HeadersResponse())
            return
        if exchange.generates:
            # No body to look at: the length that the client has named must do.
            length = exchange.headers.get("content-length", "")
            exchange.size = Size(int(length) if length.isdecimal() else 0)
        async for answer in self._place(exchange, in_body=False):
            yield answer

    async def _take_body(
        self, exchange: Exchange, part: messages.HttpBody
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
        if len(exchange.body) > MAX_BODY_BYTES:
            yield self._refuse(exchange, Refusal.TOO_LARGE)
        elif part.end_of_stream or not duplex:
            async for answer in self._place_read(exchange, ends=True):
                yield answer

    async def _take_trailers(
        self, exchange: Exchange
    ) -> AsyncIterator[messages.ProcessingResponse]:
        if not exchange.placed:
            async for answer in self._place_read(exchange, ends=False):
                yield answer
        if not exchange.refused:
            yield messages.ProcessingResponse(request_trailers=messages.TrailersResponse())

    async def _place_read(
        self, exchange: Exchange, *, ends: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        """Places a request whose body has come whole, and sends that on where it is ours to do."""
        duplex = protocol.is_duplex(exchange.request_body_mode)
        body = bytes(exchange.body)
        exchange.body.clear()
        exchange.began_at = self._clock()
        try:
            reading = estimate.read(body, is_grpc=exchange.is_grpc)
        except MalformedBodyError:
            yield self._refuse(exchange, Refusal.MALFORMED)
            return
        exchange.size, exchange.keys = reading.size, reading.keys
        async for answer in self._place(exchange, in_body=not duplex):
            yield answer
        if duplex and exchange.placed:
            for piece in protocol.request_pieces(body, ends=ends):
                yield piece

    async def _place(
        self, exchange: Exchange, *, in_body: bool
    ) -> AsyncIterator[messages.ProcessingResponse]:
        if (refusal := self._judge(exchange)) is not None:
            yield self._refuse(exchange, refusal)
            return
        request = self._request(exchange)
        if exchange.subset is None:
            answer = self._dispatcher.offer(exchange.id, request)
        else:
            answer = self._pick_among(exchange, request, exchange.subset)
        if isinstance(answer, Held):
            held = answer
            # The last word of an exchange that is cancelled while it waits.
            try:
                if not protocol.is_duplex(exchange.request_body_mode):
                    yield self._ask_for_patience(exchange, held)
                answer = await self._wait(exchange, held)
            except (asyncio.CancelledError, GeneratorExit):
                self._abandon(exchange, held)
                raise
            if isinstance(answer, Placed) and (refusal := self._judge(exchange)) is not None:
                # Another client's same prompt has crashed replicas meanwhile.
                self._fleet.end(exchange.id)
                self._dispatcher.pump()
                answer = refusal
        if isinstance(answer, Refusal):
            yield self._refuse(exchange, answer)
            return
        exchange.placed = True
        self._metrics.picked()
        tried = answer.endpoints[:1] if exchange.once else answer.endpoints
        if exchange.keys is not None:
            self._quarantine.sent(
                exchange.id, exchange.keys.whole, tuple(each.name for each in tried)
            )
        found = (
            protocol.address_in(each, exchange.subset, is_grpc=exchange.is_grpc) for each in tried
        )
        waited = round((self._clock() - exchange.began_at) * 1000)
        yield protocol.destination(
            [address for address in found if address is not None],
            {Header.WAITED: str(waited)},
            in_body=in_body,
        )

    def _pick_among(
        self, exchange: Exchange, request: Request, subset: frozenset[str]
    ) -> Placed | Refusal:
        """Picks from the gateway's subset; such a request waits for nobody, and nobody for it."""
        allowed = {
            each.name: each
            for each in self._fleet.endpoints
            if protocol.address_in(each, subset, is_grpc=exchange.is_grpc) is not None
        }
        candidates = [each for each in self._fleet.candidates() if each.name in allowed]
        answer = pick(candidates, request, self._rng)
        if isinstance(answer, Refusal):
            return answer
        if request.generates:
            sent = Sent(exchange.id, request.tokens, self._clock())
            self._fleet.send(answer.order[0], sent)
        return Placed(tuple(allowed[name] for name in answer.order))

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

    def _patience(self, exchange: Exchange, held: Held) -> float:
        """Longest stay in the queue, seconds."""
        settings = self._settings()
        longest = settings.hold_seconds if held.without_endpoint else settings.max_wait_seconds
        longest = min(longest, MAX_HOLD_SECONDS)
        if exchange.deadline is not None:
            longest = min(longest, exchange.deadline - self._clock())
        return max(0.0, longest)

    def _ask_for_patience(self, exchange: Exchange, held: Held) -> messages.ProcessingResponse:
        """Asks the gateway to wait; in full duplex there is nothing that it would wait for."""
        seconds = self._patience(exchange, held) + HOLD_MARGIN_SECONDS
        patience = duration_pb2.Duration()
        patience.FromMilliseconds(round(seconds * 1000))
        return messages.ProcessingResponse(override_message_timeout=patience)

    async def _wait(self, exchange: Exchange, held: Held) -> Placed | Refusal:
        try:
            async with asyncio.timeout(self._patience(exchange, held)):
                return await asyncio.shield(held.placed)
        except TimeoutError:
            return held.placed.result() if held.placed.done() else self._dispatcher.withdraw(held)

    def _abandon(self, exchange: Exchange, held: Held) -> None:
        self._dispatcher.withdraw(held)
        held.placed.cancel()
        waited = self._clock() - exchange.began_at
        self._metrics.ended(outcome_of_abandoned(waited, self._settings().ttft_seconds))

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> messages.ProcessingResponse:
        exchange.refused = True
        exchange.body.clear()
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

    def _take_response(
        self, exchange: Exchange, message: messages.ProcessingRequest, kind: str | None
    ) -> messages.ProcessingResponse:
        if kind == "response_headers":
            headers = fields_of(message.response_headers.headers)
            exchange.begin_answer(headers, protocol.served_of(message))
            self._note_first_byte(exchange, headers)
            return messages.ProcessingResponse(response_headers=messages.HeadersResponse())
        if kind == "response_trailers":
            exchange.end_answer(fields_of(message.response_trailers.trailers))
            return messages.ProcessingResponse(response_trailers=messages.TrailersResponse())
        if protocol.is_duplex(exchange.response_body_mode):
            return protocol.response_piece(message.response_body)
        return messages.ProcessingResponse(response_body=messages.BodyResponse())

    def _note_first_byte(self, exchange: Exchange, headers: dict[str, str]) -> None:
        if not exchange.generates or not exchange.placed:
            return
        if (replica := self._server(exchange, headers)) is not None:
            self._fleet.move(exchange.id, replica)
            is_known = self._fleet.endpoint(replica) is not None
            self._quarantine.answered(exchange.id, replica if is_known else None)
        if exchange.is_unavailable:
            self._quarantine.failed(exchange.id)
        if exchange.started:
            self._fleet.first_byte(exchange.id)
            self._metrics.first_byte(self._clock() - exchange.began_at)
        tokens = headers.get(Header.PROMPT_TOKENS, "")
        if tokens.isdecimal():
            self._tokens_per_byte = estimate.learn(
                self._tokens_per_byte, exchange.size, int(tokens)
            )

    def _server(self, exchange: Exchange, headers: dict[str, str]) -> str | None:
        """Name of the replica that answers, by the gateway's word, else by its own."""
        for endpoint in self._fleet.endpoints:
            if exchange.served in (endpoint.http_address, endpoint.grpc_address):
                return endpoint.name
        return headers.get(Header.REPLICA)

    def _end(self, exchange: Exchange) -> None:
        picked = self._fleet.end(exchange.id)
        self._dispatcher.pump()
        entry = entry_of(exchange, self._clock())
        self._quarantine.ended(exchange.id, well=entry is not None and is_success(entry))
        if entry is None:
            return
        outcome = outcome_of(entry)
        if outcome is not None:
            self._metrics.ended(outcome)
        if picked is not None and exchange.served is not None:
            self._fleet.answered(picked, well=not is_failure(entry))


async def _one(
    answer: messages.ProcessingResponse,
) -> AsyncIterator[messages.ProcessingResponse]:
    yield answer
