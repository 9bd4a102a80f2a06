"""The endpoints together: who may be picked, and what each of them holds."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastgen_balancer import health, latency
from fastgen_balancer.account import FRESH_SECONDS, LOST_AFTER_SECONDS, Account, Report, Sent
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.health import Health
from fastgen_balancer.pick import Candidate
from fastgen_balancer.standing import Standing


@dataclass(frozen=True, slots=True)
class Events:
    """Who is told, with the name of the endpoint."""

    ejected: Callable[[str, bool], None] = lambda name, is_slow: None
    crashed: Callable[[str], None] = lambda name: None
    """Its process is gone, or the way to it: what was there is lost."""


@dataclass(frozen=True, slots=True)
class _View:
    """An endpoint as picks see it while nothing happens there, until a moment.

    candidate: None while it is leaving.
    """

    until: float
    candidate: Candidate | None
    is_sound: bool


class Fleet:
    """Invariant: every open request is in exactly one account, and `_where` names it.

    Each pick looks at all endpoints, and few of them have changed since the last: what has not is
    kept in `_views`. Whatever changes an account or a standing forgets the endpoint's view.
    """

    def __init__(
        self, clock: Callable[[], float], default_capacity: int, events: Events | None = None
    ) -> None:
        self._default_capacity = default_capacity
        self._clock = clock
        self._events = events or Events()
        self._endpoints: dict[str, Endpoint] = {}
        self._accounts: dict[str, Account] = {}
        self._standings: dict[str, Standing] = {}
        self._left_at: dict[str, float] = {}
        self._where: dict[str, str] = {}
        self._at: dict[str, str] = {}
        self._views: dict[str, _View] = {}

    @property
    def default_capacity(self) -> int:
        """Used until a replica has told its own."""
        return self._default_capacity

    @default_capacity.setter
    def default_capacity(self, capacity: int) -> None:
        self._default_capacity = capacity
        self._views.clear()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(self._endpoints.values())

    @property
    def in_flight(self) -> int:
        return len(self._where)

    def endpoint(self, name: str) -> Endpoint | None:
        return self._endpoints.get(name)

    def name_at(self, address: str) -> str | None:
        """Who listens at this `HOST:PORT`, by HTTP or gRPC; None: none of the endpoints."""
        return self._at.get(address)

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Takes the new set; requests of endpoints that left are kept until their streams end."""
        now = self._clock()
        old, self._endpoints = self._endpoints, {e.name: e for e in endpoints}
        self._views.clear()
        self._at = {
            address: name
            for name, endpoint in self._endpoints.items()
            for address in (endpoint.http_address, endpoint.grpc_address)
        }
        for name, endpoint in self._endpoints.items():
            self._accounts.setdefault(name, Account())
            self._left_at.pop(name, None)
            if name in old and old[name].place == endpoint.place:
                continue
            if name in old:
                # Another replica under the same name: nothing is known of it.
                self._accounts[name].hear(None)
            # The first ones share the load from the start: there are no warm ones to take it.
            self._standings[name] = Standing(new_since=now if old else None)
        for name in old.keys() - self._endpoints.keys():
            self._left_at[name] = now
            self._standings[name] = Standing()
        self._sweep_left(now)

    def candidates(self) -> list[Candidate]:
        """Endpoints that may be picked now.

        Failing ones are left out only while another is sound: if all seem to fail, the fault may
        well be ours, and trying is better than refusing.
        """
        now, views = self._clock(), self._views
        usable: list[Candidate] = []
        sound: list[Candidate] = []
        for name in self._endpoints:
            view = views.get(name)
            if view is None or now > view.until:
                view = self._look(name, now)
            if view.candidate is not None:
                usable.append(view.candidate)
                if view.is_sound:
                    sound.append(view.candidate)
        return sound or usable

    def saturated(self) -> int:
        """How many of the pickable endpoints have no room or say so themselves."""
        reports = {name: account.report for name, account in self._accounts.items()}
        return sum(
            1
            for c in self.candidates()
            if not c.has_room or (c.fresh and (r := reports[c.name]) is not None and r.saturated)
        )

    def send(self, name: str, sent: Sent) -> None:
        self._accounts[name].send(sent)
        self._standings[name].send(sent, self._clock())
        self._where[sent.id] = name
        self._changed(name)

    def move(self, request_id: str, name: str) -> None:
        """Notes that another endpoint than the picked one has answered: the retry's."""
        old = self._where.get(request_id)
        if old is None or old == name or name not in self._accounts:
            return
        sent = self._accounts[old].end(request_id)
        if sent is not None:
            self._accounts[name].send(sent)
            self._where[request_id] = name
            if sent.witnessed:
                self.missed(old)
            self._standings[old].leave(request_id)
            self._changed(old)
            self._changed(name)

    def end(self, request_id: str) -> str | None:
        """Takes an ended request off; returns where it was, None when it is not known."""
        name = self._where.pop(request_id, None)
        if name is not None:
            self._accounts[name].end(request_id)
            self._standings[name].leave(request_id)
            self._changed(name)
        return name

    def holder(self, request_id: str) -> str | None:
        """Where a request is; None when it is not known."""
        return self._where.get(request_id)

    def first_byte(self, request_id: str) -> None:
        """Notes that a request's answer has begun, and well, where the request is."""
        now = self._clock()
        name = self._where.get(request_id)
        if name is None:
            return
        standing = self._standings[name]
        took = standing.first_bytes.first_byte(request_id, now)
        if took is None or not standing.health.is_slow or standing.probe != request_id:
            return
        limit = latency.limits(self._times(now) | {name: standing.first_bytes.times(now)}).get(name)
        if limit is not None and took > limit:
            self._become(name, health.found_slow(standing.health, now))
        else:
            self._become(name, health.found_quick(standing.health))

    def answered(self, name: str, *, well: bool) -> None:
        """Notes how an endpoint dealt with a request."""
        if name not in self._endpoints:
            return
        old = self._standings[name].health
        self._become(name, health.succeeded(old) if well else health.failed(old, self._clock()))

    def eject_slow(self) -> None:
        """Ejects endpoints that answer far later than the others do."""
        now = self._clock()
        out = sum(not self._standings[name].is_sound(now) for name in self._endpoints)
        for name in latency.slow(self._times(now), out, len(self._endpoints)):
            self._become(name, health.found_slow(self._standings[name].health, now))

    def _times(self, now: float) -> dict[str, latency.Times]:
        """Of the endpoints that take requests as always."""
        return {
            name: self._standings[name].first_bytes.times(now)
            for name, endpoint in self._endpoints.items()
            if not self._is_leaving(endpoint) and self._standings[name].is_sound(now)
        }

    def _become(self, name: str, new: Health) -> None:
        self._changed(name)
        if self._standings[name].become(new, self._clock()):
            self._events.ejected(name, new.is_slow)

    def missed(self, name: str) -> None:
        """Notes that a request was answered elsewhere: of a probe that is a failure."""
        if name in self._endpoints and self._standings[name].health.probing:
            self.answered(name, well=False)

    def hear(self, name: str, report: Report) -> None:
        if name in self._endpoints:
            self._accounts[name].hear(report)
            self._standings[name].hear(self._clock())
            self._changed(name)

    def hear_nothing(self, name: str, *, is_gone: bool = False) -> None:
        """Notes that GetLoad failed; is_gone: nobody listens there any more."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return
        standing = self._standings[name]
        was_there = standing.is_known_to_live(self._clock())
        standing.failed_calls += 1
        standing.is_gone |= is_gone
        self._changed(name)
        if is_gone and was_there and not self._is_leaving(endpoint):
            self._events.crashed(name)

    def forget_lost(self) -> int:
        """Drops requests whose end was never told; returns how many."""
        now = self._clock()
        lost = 0
        for name, account in self._accounts.items():
            for sent in account.forget_lost(now):
                self._changed(name)
                self._where.pop(sent.id, None)
                lost += 1
                standing = self._standings[name]
                if standing.probe == sent.id:
                    self._become(name, health.failed(standing.health, now))
                standing.leave(sent.id)
        return lost + self._sweep_left(now)

    def _sweep_left(self, now: float) -> int:
        lost = 0
        for name, left_at in list(self._left_at.items()):
            account = self._accounts[name]
            if account.open and now - left_at <= LOST_AFTER_SECONDS:
                continue
            for request_id in account.open:
                self._where.pop(request_id, None)
                lost += 1
            del self._accounts[name], self._left_at[name], self._standings[name]
        return lost

    def _is_leaving(self, endpoint: Endpoint) -> bool:
        report = self._accounts[endpoint.name].report
        return endpoint.terminating or (report is not None and report.draining)

    def _look(self, name: str, now: float) -> _View:
        account, standing = self._accounts[name], self._standings[name]
        requests, tokens, is_fresh = account.load(now)
        report = account.report
        capacity = (report.max_concurrent_requests if report else 0) or self._default_capacity
        weight = standing.weight(now)
        candidate = Candidate(
            name, tokens, requests, capacity, is_fresh, weight, standing.failed_calls == 0
        )
        is_leaving = self._is_leaving(self._endpoints[name])
        # The clock alone changes what is new, failing or ejected.
        is_steady = weight == 1.0 and standing.is_plain
        until = math.inf
        if not is_steady:
            until = now
        elif report is not None and is_fresh:
            until = report.asked_at + FRESH_SECONDS
        view = _View(until, None if is_leaving else candidate, standing.is_sound(now))
        self._views[name] = view
        return view

    def _changed(self, name: str) -> None:
        self._views.pop(name, None)
