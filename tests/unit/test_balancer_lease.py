"""One leader at a time."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_balancer.lease import TIMING, Move, Seen, next_lease

MINE, OTHER = "me", "other"


def seen(holder: str, since: float = 0.0) -> Seen:
    return Seen(holder=holder, version="1", duration=15.0, since=since)


@pytest.mark.parametrize(
    ("lease", "held_since", "now", "move"),
    [
        (None, None, 0.0, Move.ACQUIRE),
        (seen(""), None, 0.0, Move.ACQUIRE),
        (seen(OTHER), None, 14.9, Move.WAIT),
        (seen(OTHER), None, 15.0, Move.ACQUIRE),
        (seen(MINE), None, 1.0, Move.ACQUIRE),
        (seen(MINE), 0.0, 2.0, Move.RENEW),
        (seen(MINE), 0.0, 9.9, Move.RENEW),
        (seen(MINE), 0.0, 10.0, Move.LOST),
        (seen(OTHER), 0.0, 2.0, Move.LOST),
        (seen(""), 0.0, 2.0, Move.LOST),
        (None, 0.0, 2.0, Move.LOST),
    ],
)
def test_next_lease(lease: Seen | None, held_since: float | None, now: float, move: Move) -> None:
    assert next_lease(lease, MINE, held_since, now, TIMING) is move


@dataclass
class Contender:
    """A process with a clock of its own that sees the lease now and then."""

    name: str
    offset: float
    seen: Seen | None = None
    held_since: float | None = None

    def look(self, holder: str | None, version: int, now: float) -> Move:
        mine = now + self.offset
        if holder is None:
            self.seen = None
        elif self.seen is None or self.seen.version != str(version):
            self.seen = Seen(holder, str(version), TIMING.duration, mine)
        move = next_lease(self.seen, self.name, self.held_since, mine, TIMING)
        if move in (Move.ACQUIRE, Move.RENEW):
            self.held_since = mine
            self.seen = Seen(self.name, str(version + 1), TIMING.duration, mine)
        elif move is Move.LOST:
            self.held_since = None
        return move

    def leads(self, now: float) -> bool:
        return self.held_since is not None and now + self.offset - self.held_since < 10.0


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.01, 9.0)), min_size=10, max_size=150),
)
def test_never_two_leaders_whatever_their_clocks(
    offsets: list[float], looks: list[tuple[int, float]]
) -> None:
    contenders = [Contender(str(i), offset) for i, offset in enumerate(offsets)]
    holder, version, now = None, 0, 0.0
    for index, pause in looks:
        now += pause
        if contenders[index].look(holder, version, now) in (Move.ACQUIRE, Move.RENEW):
            holder, version = contenders[index].name, version + 1
        assert sum(contender.leads(now) for contender in contenders) <= 1
