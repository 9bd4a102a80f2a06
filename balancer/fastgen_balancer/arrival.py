"""A request before it is anybody's: what it asks for, and which deployment that is."""

import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import TypeVar

from envoy.service.ext_proc.v3 import external_processor_pb2 as messages

from fastgen_api.request_id import is_request_id
from fastgen_balancer import estimate
from fastgen_balancer.choice import Unplaced, choose, named_by_header
from fastgen_balancer.deadline import timeout_seconds
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.estimate import MalformedBodyError, TooLargeBodyError
from fastgen_balancer.exchange import Exchange
from fastgen_balancer.member import Member
from fastgen_balancer.metrics import UnplacedMetrics
from fastgen_balancer.model_list import answer_of, immediate_answer
from fastgen_balancer.pick import Refusal
from fastgen_balancer.prompt import form_of
from fastgen_balancer.refusal import immediate_response
from fastgen_balancer.roster import Entry, Roster

E = TypeVar("E", bound=Exchange)


class Arrivals:
    """Gives each request an id and a member, or says why it has none."""

    def __init__(
        self,
        roster: Callable[[], Roster],
        members: Mapping[str, Member],
        metrics: UnplacedMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._members = members
        self._metrics = metrics
        self._clock = clock
        # Ids differ from those of a predecessor, whose log entries may still come.
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    def begin(self, kind: type[E], headers: dict[str, str], named: str) -> E:
        """A request by its headers; `named`: the id that its client gave it, sound or not."""
        now, timeout = self._clock(), timeout_seconds(headers)
        roster = self._roster()
        return kind(
            id=f"{self._prefix}-{next(self._numbers)}",
            method=headers.get(":method", ""),
            path=headers.get(":path", ""),
            is_grpc=headers.get("content-type", "").startswith("application/grpc"),
            began_at=now,
            deadline=None if timeout is None else now + timeout,
            client_id=named if is_request_id(named) else None,
            headers=headers,
            # Whose it is as far as its headers tell, so that it is counted there in any case.
            member=self._member(roster.sole or named_by_header(roster, headers)),
        )

    def answer(self, exchange: Exchange) -> messages.ProcessingResponse | None:
        """The answer to what no replica need be asked; None: it is no such request."""
        if exchange.is_grpc:
            return None
        found = answer_of(self._roster(), exchange.method, exchange.path)
        if isinstance(found, Unplaced):
            exchange.member, exchange.complaint = None, found.message
            return self.refuse(exchange, found.refusal)
        return None if found is None else immediate_answer(found)

    def read(self, exchange: Exchange, body: bytes) -> Refusal | None:
        """Notes a whole request's size, keys and member, or says why it goes nowhere."""
        exchange.began_at = self._clock()
        exchange.body_bytes = len(body)
        if len(body) > MAX_BODY_BYTES:
            return Refusal.TOO_LARGE
        try:
            reading = estimate.read(body, is_grpc=exchange.is_grpc)
        except MalformedBodyError:
            return Refusal.MALFORMED
        except TooLargeBodyError:
            return Refusal.TOO_LARGE
        exchange.size, exchange.keys, exchange.form = reading.size, reading.keys, form_of(body)
        return self.assign(exchange, reading.model)

    def assign(self, exchange: Exchange, model: str | None) -> Refusal | None:
        """Notes whose the request is, or says why it is nobody's.

        `model`: as its body says; None where that does not read or has not come.
        """

        def prompt_tokens(deployment: str) -> int:
            return self._members[deployment].reception.prompt_tokens(exchange)

        headers, exchange.headers = exchange.headers, {}
        roster = self._roster()
        if not exchange.generates:
            exchange.member = exchange.member or self._any(roster)
            return None if exchange.member else Refusal.NO_ENDPOINTS
        chosen = choose(roster, model, headers, prompt_tokens)
        if isinstance(chosen, Unplaced):
            exchange.member, exchange.complaint = None, chosen.message
            return chosen.refusal
        exchange.member = self._members[chosen.deployment]
        exchange.judged = chosen.judged
        return None

    def refuse(self, exchange: Exchange, refusal: Refusal) -> messages.ProcessingResponse:
        """Says no, in the name of the member that the request is for, where there is one."""
        if exchange.member is not None:
            return exchange.member.reception.refuse(exchange, refusal)
        self._metrics.refused(refusal)
        response = immediate_response(
            refusal, is_grpc=exchange.is_grpc, message=exchange.complaint or None
        )
        return messages.ProcessingResponse(immediate_response=response)

    def _any(self, roster: Roster) -> Member | None:
        """Any member's replicas can tell of the API, as reflection does."""
        found = [self._members[each.deployment] for each in roster.members]
        ready = (member for member in found if member.fleet.candidates())
        return next(ready, found[0] if found else None)

    def _member(self, entry: Entry | None) -> Member | None:
        return self._members.get(entry.deployment) if entry else None
