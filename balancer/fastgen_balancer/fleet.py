"""The endpoints together: who may be picked, and what each of them holds."""

from collections.abc import Callable, Iterable
from typing import Final

from fastgen_balancer import health
from fastgen_balancer.account import LOST_AFTER_SECONDS, Account, Report, Sent
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.health import Health, State
from fastgen_balancer.pick import Candidate

UNREACHABLE_AFTER: Final = 3
"""Failed calls of GetLoad in a row."""


class Fleet:
    """Invariant: every open request is in exactly one account, and `_where` names it."""

    def __init__(self, clock: Callable[[], float], default_capacity: int) -> None:
        self.default_capacity = default_capacity
        """Used until a replica has told its own."""
        self._clock = clock
        self._endpoints: dict[str, Endpoint] = {}
        self._accounts: dict[str, Account] = {}
        self._health: dict[str, Health] = {}
        self._silent: dict[str, int] = {}
        self._left_at: dict[str, float] = {}
        self._where: dict[str, str] = {}

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(self._endpoints.values())

    @property
    def in_flight(self) -> int:
        return len(self._where)

    def endpoint(self, name: str) -> Endpoint | None:
        return self._endpoints.get(name)

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Takes the new set; requests of endpoints that left are kept until their streams end."""
        old, self._endpoints = self._endpoints, {e.name: e for e in endpoints}
        for name in self._endpoints:
            self._accounts.setdefault(name, Account())
            self._left_at.pop(name, None)
        for name in old.keys() & self._endpoints.keys():
            if old[name].place != self._endpoints[name].place:
                # Another replica under the same name: nothing is known of it.
                self._accounts[name].hear(None)
                self._health.pop(name, None)
                self._silent.pop(name, None)
        for name in old.keys() - self._endpoints.keys():
            self._left_at[name] = self._clock()
            self._health.pop(name, None)
            self._silent.pop(name, None)
        self._sweep_left(self._clock())

    def candidates(self) -> list[Candidate]:
        """Endpoints that may be picked now.

        Failing ones are left out only while another is sound: if all seem to fail, the fault may
        well be ours, and trying is better than refusing.
        """
        now = self._clock()
        usable = [e.name for e in self._endpoints.values() if not self._is_leaving(e)]
        sound = [name for name in usable if self._is_sound(name, now)]
        return [self._candidate(name, now) for name in sound or usable]

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
        self._where[sent.id] = name
        self._health[name] = health.sent(self._health.get(name, Health()), self._clock())

    def move(self, request_id: str, name: str) -> None:
        """Notes that another endpoint than the picked one has answered: the retry's."""
        old = self._where.get(request_id)
        if old is None or old == name or name not in self._accounts:
            return
        sent = self._accounts[old].end(request_id)
        if sent is not None:
            self._accounts[name].send(sent)
            self._where[request_id] = name
            self.missed(old)

    def end(self, request_id: str) -> str | None:
        """Takes an ended request off; returns where it was, None when it is not known."""
        name = self._where.pop(request_id, None)
        if name is not None:
            self._accounts[name].end(request_id)
        return name

    def answered(self, name: str, *, well: bool) -> None:
        """Notes how an endpoint dealt with a request."""
        old = self._health.get(name, Health())
        self._health[name] = health.succeeded(old) if well else health.failed(old, self._clock())

    def missed(self, name: str) -> None:
        """Notes that a request was answered elsewhere: of a probe that is a failure."""
        if self._health.get(name, Health()).probing:
            self.answered(name, well=False)

    def hear(self, name: str, report: Report) -> None:
        if name in self._endpoints:
            self._accounts[name].hear(report)
            self._silent[name] = 0

    def hear_nothing(self, name: str) -> None:
        """Notes that GetLoad failed."""
        if name in self._endpoints:
            self._silent[name] = self._silent.get(name, 0) + 1

    def forget_lost(self) -> int:
        """Drops requests whose end was never told; returns how many."""
        now = self._clock()
        lost = 0
        for name, account in self._accounts.items():
            for sent in account.forget_lost(now):
                self._where.pop(sent.id, None)
                lost += 1
                old = self._health.get(name, Health())
                if old.probing:
                    self._health[name] = health.failed(old, now)
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
            del self._accounts[name], self._left_at[name]
        return lost

    def _is_leaving(self, endpoint: Endpoint) -> bool:
        report = self._accounts[endpoint.name].report
        return endpoint.terminating or (report is not None and report.draining)

    def _is_sound(self, name: str, now: float) -> bool:
        if self._silent.get(name, 0) >= UNREACHABLE_AFTER:
            return False
        return self._health.get(name, Health()).state(now) is not State.OPEN

    def _candidate(self, name: str, now: float) -> Candidate:
        account = self._accounts[name]
        report = account.report
        capacity = report.max_concurrent_requests if report else 0
        return Candidate(
            name,
            account.tokens(now),
            account.requests(now),
            capacity or self.default_capacity,
            account.is_fresh(now),
        )
