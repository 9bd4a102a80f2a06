"""What one endpoint holds: its own word, and what we sent since."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

EXPECTED_OUTPUT_TOKENS: Final = 128
"""Output that a request is taken to make when it names no lower bound of its own."""
FRESH_SECONDS: Final = 2.0
"""Age at which a report stops to count."""
LOST_AFTER_SECONDS: Final = 5.0
"""How long the replica must hold less than we think before its word wins."""
MAX_AGE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Report:
    """A replica's word, from GetLoad."""

    asked_at: float
    """Before the call, seconds of the monotonic clock: what was sent later may not be in it."""
    running_requests: int
    waiting_requests: int
    owed_tokens: int
    max_concurrent_requests: int
    draining: bool = False
    saturated: bool = False

    @property
    def requests(self) -> int:
        return self.running_requests + self.waiting_requests


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was sent and has not ended."""

    id: str
    tokens: int
    sent_at: float
    witnessed: bool = True
    """Whether our own Envoy tells what becomes of it; else it says nothing of the endpoint."""


@dataclass(slots=True)
class Account:
    """The open requests of one endpoint.

    Invariant: the `unseen` numbers are those of the open requests sent after the last report was
    asked for; `ended` counts those the report still contains.
    """

    report: Report | None = None
    open: dict[str, Sent] = field(default_factory=dict)
    unseen_requests: int = 0
    unseen_tokens: int = 0
    ended_requests: int = 0
    excess_since: float | None = None

    def send(self, sent: Sent) -> None:
        self.open[sent.id] = sent
        if self._is_unseen(sent):
            self.unseen_requests += 1
            self.unseen_tokens += sent.tokens

    def end(self, request_id: str) -> Sent | None:
        """Takes a request off; None when it was not here."""
        sent = self.open.pop(request_id, None)
        if sent is None:
            return None
        if self._is_unseen(sent):
            self.unseen_requests -= 1
            self.unseen_tokens -= sent.tokens
        else:
            self.ended_requests += 1
        return sent

    def hear(self, report: Report | None) -> None:
        """Takes the replica's word in place of the last one; None: the last one counts no more."""
        self.report = report
        self.ended_requests = 0
        unseen = [sent for sent in self.open.values() if self._is_unseen(sent)]
        self.unseen_requests = len(unseen)
        self.unseen_tokens = sum(sent.tokens for sent in unseen)

    def is_fresh(self, now: float) -> bool:
        return self.report is not None and now <= self.report.asked_at + FRESH_SECONDS

    def requests(self, now: float) -> int:
        """Requests that the endpoint holds, those of other balancers included where known."""
        return self.load(now)[0]

    def tokens(self, now: float) -> int:
        """Tokens that the endpoint has still to compute."""
        return self.load(now)[1]

    def load(self, now: float) -> tuple[int, int, bool]:
        """Requests, tokens, and whether they rest on a fresh word: all that each pick asks for."""
        report = self.report
        if report is None or now > report.asked_at + FRESH_SECONDS:
            return len(self.open), sum(sent.tokens for sent in self.open.values()), False
        held = report.requests - self.ended_requests
        if held < 0:
            held = 0
        # A request met at a random moment has half of its output behind it.
        output = held * (EXPECTED_OUTPUT_TOKENS // 2)
        tokens = report.owed_tokens + output + self.unseen_tokens
        return held + self.unseen_requests, tokens, True

    def forget_lost(self, now: float) -> tuple[Sent, ...]:
        """Drops the requests whose end we never heard of.

        Those are the oldest ones beyond what the replica itself holds for a while now, and those
        older than an hour. The replica also counts other balancers' requests, so this drops late
        rather than early.
        """
        lost = [s for s in self.open.values() if now - s.sent_at > MAX_AGE_SECONDS]
        excess = self._excess(now)
        if excess <= 0:
            self.excess_since = None
        elif self.excess_since is None:
            self.excess_since = now
        elif now - self.excess_since >= LOST_AFTER_SECONDS:
            self.excess_since = None
            lost.extend(s for s in list(self._settled(now))[:excess] if s not in lost)
        for sent in lost:
            self.end(sent.id)
        return tuple(lost)

    def _excess(self, now: float) -> int:
        if self.report is None or not self.is_fresh(now):
            return 0
        return sum(1 for _ in self._settled(now)) - self.report.requests

    def _settled(self, now: float) -> Iterator[Sent]:
        """Open requests, oldest first, that the replica must know of if they still exist."""
        return (s for s in self.open.values() if now - s.sent_at > LOST_AFTER_SECONDS)

    def _is_unseen(self, sent: Sent) -> bool:
        return self.report is None or sent.sent_at >= self.report.asked_at
