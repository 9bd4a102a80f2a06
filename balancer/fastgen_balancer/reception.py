"""How a deployment receives a request, whichever proxy asks: our own Envoy or a gateway."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from google.protobuf import duration_pb2

from fastgen_api.names import Header, Outcome
from fastgen_balancer import estimate
from fastgen_balancer.dispatch import Answer, Dispatcher, Held, Placed
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.metrics import Metrics
from fastgen_balancer.outcome import outcome_of_abandoned
from fastgen_balancer.pick import Refusal, Request
from fastgen_balancer.quarantine import Quarantine
from fastgen_balancer.refusal import immediate_response
from fastgen_balancer.settings import MAX_HOLD_SECONDS, Settings
from fastgen_balancer.suspicion import Verdict

HOLD_MARGIN_SECONDS: Final = 1.0


class Reception:
    """Books each request with the queue, the fleet, the quarantine and the metrics.

    It learns the tokens per byte. What a gateway tells of answers is believed of its own requests
    alone: it moves no endpoint's health, no other request's size, and acquits no prompt.
    """

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
        # Of those with our own Envoy as a witness, and of gateways': they size their own alone.
        self.spread: Callable[[], Awaitable[None]] = _nobody
        """Returns when other pods know of a failure that a client is about to be told."""
        self._tokens_per_byte = dict.fromkeys((True, False), estimate.FIRST_TOKENS_PER_BYTE)

    def judge(self, exchange: Exchange) -> Refusal | None:
        """Refuses what has crashed replicas; what may have is sent to one only."""
        if exchange.keys is None:
            return None
        verdict = self._quarantine.verdict(exchange.keys.whole)
        exchange.once = verdict is Verdict.SUSPECT
        if verdict is Verdict.CONVICTED:
            return Refusal.QUARANTINED
        return Refusal.UNDECIDED if verdict is Verdict.UNDECIDED else None

    def request(self, exchange: Exchange) -> Request:
        """What picking needs to know of it."""
        tokens = estimate.tokens_of(exchange.size, self._tokens_per_byte[exchange.witnessed])
        keys = exchange.keys if self._settings().prefers_prefix else None
        opening = keys.opening if keys else None
        return Request(
            exchange.generates,
            tokens,
            opening,
            exchange.deadline,
            exchange.body_bytes,
            exchange.witnessed,
        )

    def prompt_tokens(self, exchange: Exchange) -> int:
        """How long its prompt is for this deployment, as far as the balancer can tell."""
        return estimate.prompt_tokens_of(exchange.size, self._tokens_per_byte[exchange.witnessed])

    def offer(self, exchange: Exchange) -> Answer:
        """Judges the request, and places it, holds it, or refuses it."""
        if (refusal := self.judge(exchange)) is not None:
            return refusal
        request = self.request(exchange)
        if (name := self.trial(exchange)) is not None:
            return self._dispatcher.offer_at(exchange.id, request, name)
        return self._dispatcher.offer(exchange.id, request)

    def trial(self, exchange: Exchange) -> str | None:
        """The one endpoint that a suspect may go to, since its like runs there; None: any."""
        if not exchange.once or exchange.keys is None:
            return None
        return self._quarantine.trial(exchange.keys.whole)

    def patience(self, exchange: Exchange, held: Held) -> float:
        """Longest stay in the queue, seconds."""
        settings = self._settings()
        longest = settings.hold_seconds if held.without_endpoint else settings.max_wait_seconds
        longest = min(longest, MAX_HOLD_SECONDS)
        if exchange.deadline is not None:
            longest = min(longest, exchange.deadline - self._clock())
        return max(0.0, longest)

    async def wait(self, exchange: Exchange, held: Held, seconds: float) -> Placed | Refusal:
        """Waits until a replica has room or the time is up.

        Cancelled: the client has left.
        """
        try:
            async with asyncio.timeout(seconds):
                answer = await asyncio.shield(held.placed)
        except TimeoutError:
            answer = held.placed.result() if held.placed.done() else self._dispatcher.withdraw(held)
        except (asyncio.CancelledError, GeneratorExit):
            self.abandon(exchange, held)
            raise
        return self._judge_again(exchange, answer) if isinstance(answer, Placed) else answer

    def _judge_again(self, exchange: Exchange, placed: Placed) -> Placed | Refusal:
        """After a wait: another client's same prompt may have crashed replicas meanwhile."""
        answer: Placed | Refusal = self.judge(exchange) or placed
        name = self.trial(exchange)
        if isinstance(answer, Placed) and name in (None, placed.endpoints[0].name):
            return answer
        self._fleet.end(exchange.id)
        if isinstance(answer, Placed) and name is not None:
            answer = self._dispatcher.offer_at(exchange.id, self.request(exchange), name)
        self._dispatcher.pump()
        return answer

    def abandon(self, exchange: Exchange, held: Held) -> None:
        """Takes off the queue a request whose client left: the proxy closed its stream."""
        self._dispatcher.withdraw(held)
        held.placed.cancel()
        # Its turn may have come after its end was booked: what it was given is given back.
        self._fleet.end(exchange.id)
        self._dispatcher.pump()
        waited = self._clock() - exchange.began_at
        self._metrics.ended(outcome_of_abandoned(waited, self._settings().ttft_seconds))

    def refuse(self, exchange: Exchange, refusal: Refusal) -> messages.ProcessingResponse:
        """Says no, and when to come again."""
        self._metrics.refused(refusal, counted=exchange.generates)
        seconds = None
        if refusal in (Refusal.QUARANTINED, Refusal.UNDECIDED) and exchange.keys is not None:
            seconds = math.ceil(self._quarantine.seconds_left(exchange.keys.whole))
        elif refusal in (Refusal.FULL, Refusal.DEADLINE, Refusal.EXPIRED):
            seconds = self._dispatcher.retry_after_seconds()
        response = immediate_response(
            refusal, is_grpc=exchange.is_grpc, retry_after_seconds=seconds
        )
        return messages.ProcessingResponse(immediate_response=response)

    def send(self, exchange: Exchange, placed: Placed) -> tuple[Endpoint, ...]:
        """Books a request that is on its way; returns where it may be tried, in order."""
        exchange.placed = True
        self._metrics.picked()
        tried = placed.endpoints[:1] if exchange.once else placed.endpoints
        if exchange.keys is not None:
            names = tuple(endpoint.name for endpoint in tried)
            self._quarantine.sent(exchange.id, exchange.keys.whole, names, exchange.form)
        return tried

    def waited(self, exchange: Exchange) -> dict[str, str]:
        """The headers by which the replica knows how long the request has been here already.

        Of a gateway's request it counts each end itself: here nobody hears of it.
        """
        waited = {Header.WAITED: str(round((self._clock() - exchange.began_at) * 1000))}
        return waited if exchange.witnessed else waited | {Header.UNWITNESSED: "1"}

    def judged(self, exchange: Exchange) -> dict[str, str]:
        """The header by which the replica knows that the model needs no more judging."""
        return {Header.MODEL_JUDGED: "1"} if exchange.judged else {}

    async def answered(
        self, exchange: Exchange, headers: dict[str, str], replica: str | None
    ) -> None:
        """As `first_byte`; of a failure all pods know before the client, who may come again."""
        self.first_byte(exchange, headers, replica)
        if self.must_spread(exchange, replica):
            await self.spread()

    def unreached(self, exchange: Exchange) -> None:
        """Counts a request that was sent, and that no replica has seen, so that none counts it.

        Its proxy has told that it reached none, or has gone before it heard where to.
        """
        if not exchange.generates or not exchange.placed:
            return
        if exchange.is_unavailable:
            self._metrics.ended(Outcome.ERROR)
            return
        waited = self._clock() - exchange.began_at
        self._metrics.ended(outcome_of_abandoned(waited, self._settings().ttft_seconds))

    def must_spread(self, exchange: Exchange, replica: str | None) -> bool:
        """Whether an answer is a failure that all pods have to know of before its client does."""
        return exchange.generates and exchange.is_unavailable and replica is None

    def first_byte(self, exchange: Exchange, headers: dict[str, str], replica: str | None) -> None:
        """Books the beginning of an answer; `replica`: the name of who answers, where known."""
        if not exchange.generates or not exchange.placed:
            return
        if replica is not None:
            self._fleet.move(exchange.id, replica)
            is_known = self._fleet.endpoint(replica) is not None
            self._quarantine.answered(exchange.id, replica if is_known else None)
        elif exchange.is_unavailable:
            # A replica that says so itself, as while it drains, has not crashed.
            self._quarantine.failed(exchange.id)
        if exchange.started:
            self._fleet.first_byte(exchange.id)
            self._metrics.first_byte(self._clock() - exchange.began_at)
        tokens = headers.get(Header.PROMPT_TOKENS, "")
        if tokens.isdecimal():
            kind = exchange.witnessed
            self._tokens_per_byte[kind] = estimate.learn(
                self._tokens_per_byte[kind], exchange.size, int(tokens)
            )

    def end(self, exchange: Exchange, *, well: bool) -> None:
        """Books the end of a request."""
        self._fleet.end(exchange.id)
        self._quarantine.ended(exchange.id, well=well)
        self._dispatcher.pump()


async def _nobody() -> None:
    """There is no other pod."""


def ask_for_patience(seconds: float) -> messages.ProcessingResponse:
    """Asks the proxy to wait for the answer for so much longer."""
    patience = duration_pb2.Duration()
    patience.FromMilliseconds(round((seconds + HOLD_MARGIN_SECONDS) * 1000))
    return messages.ProcessingResponse(override_message_timeout=patience)
