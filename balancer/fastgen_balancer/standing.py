"""How one endpoint has behaved so far: whether it may be picked, and with what weight."""

from dataclasses import dataclass, field
from typing import Final

from fastgen_balancer import health as states
from fastgen_balancer.account import Sent
from fastgen_balancer.health import Health, State
from fastgen_balancer.latency import FirstBytes

UNREACHABLE_AFTER: Final = 3
"""Failed calls of GetLoad in a row."""
SILENT_SECONDS: Final = 2.0
"""Without a word, and with a failed call, it is out before a third call has timed out."""
SLOW_START_SECONDS: Final = 15.0
"""How long a new endpoint's share grows: its caches are cold, and it looks idle to every picker."""
FIRST_WEIGHT: Final = 0.1


def weight_of(age_seconds: float) -> float:
    """Share of a full endpoint's load for one that has been there for so long."""
    return min(1.0, max(FIRST_WEIGHT, age_seconds / SLOW_START_SECONDS))


@dataclass(slots=True)
class Standing:
    """Invariant: `probe` names a request exactly while the health is probing."""

    new_since: float | None = None
    """When it came, or came back; None: long ago."""
    health: Health = field(default_factory=Health)
    probe: str | None = None
    failed_calls: int = 0
    """Of GetLoad, in a row."""
    is_gone: bool = False
    """Whether nobody has listened there since it was last heard."""
    heard_at: float | None = None
    first_bytes: FirstBytes = field(default_factory=FirstBytes)

    @property
    def is_plain(self) -> bool:
        """Whether it answers and is not ejected: sound, whatever the time."""
        return self.failed_calls == 0 and self.health.ejections == 0

    def is_sound(self, now: float) -> bool:
        if self.is_plain:
            return True
        return not self.is_unreachable(now) and self.health.state(now) is not State.OPEN

    def is_unreachable(self, now: float) -> bool:
        if self.failed_calls >= UNREACHABLE_AFTER:
            return True
        is_silent = self.heard_at is not None and now - self.heard_at >= SILENT_SECONDS
        return is_silent and self.failed_calls > 0

    def is_known_to_live(self, now: float) -> bool:
        """Whether it was heard lately: a call that timed out on a busy machine says no more."""
        return self.heard_at is not None and not self.is_gone and not self.is_unreachable(now)

    def weight(self, now: float) -> float:
        return 1.0 if self.new_since is None else weight_of(now - self.new_since)

    def hear(self, now: float) -> None:
        if self.is_unreachable(now):
            self.new_since = now
        self.failed_calls = 0
        self.is_gone = False
        self.heard_at = now

    def send(self, sent: Sent, now: float) -> None:
        """Notes a request on its way here; one without a witness is no probe and has no times."""
        if not sent.witnessed:
            return
        self.first_bytes.sent(sent)
        health = states.sent(self.health, now)
        if health.probing and not self.health.probing:
            self.probe = sent.id
        self.health = health

    def leave(self, request_id: str) -> None:
        """Takes off a request that ended or moved.

        A probe that ended without a verdict, as when its client left, makes room for another.
        """
        self.first_bytes.left(request_id)
        if self.probe == request_id:
            self.probe = None
            self.health = states.released(self.health)

    def become(self, health: Health, now: float) -> bool:
        """Takes the health that a verdict gives; returns whether that is an ejection."""
        old, self.health = self.health, health
        if not health.probing:
            self.probe = None
        if health.is_slow or old.is_slow:
            # What was before tells nothing of how it is now.
            self.first_bytes.answered.clear()
        if old.ejections > 0 and health.ejections == 0:
            # Idle as it is after its absence, every picker would send it everything.
            self.new_since = now
        return health.ejections > old.ejections
