"""The autoscaler's memory as a text that its successor reads.

It is written when a successor would do something else without it, so that a new leader knows each
wish of the stabilisation windows, each change that the policies count, how long replicas have been
pending and what one of them carries. When the last decision was made goes with the renewals of the
lease: until then nothing was news, and no time has passed unseen.
"""

from dataclasses import replace
from typing import Any, Final

import msgspec

from fastgen_api.spec import ScalingMode
from fastgen_balancer.decision import Memory

BUSY_SECONDS: Final = 10.0
"""Between two writes while there is traffic: what one replica carries is learned all the time."""
QUIET_SECONDS: Final = 60.0
"""The same while nothing arrives, waits or runs."""


class Memo(msgspec.Struct, frozen=True):
    """What a leader leaves. mode: in which the decisions were made."""

    mode: ScalingMode
    memory: Memory


def is_due(left: Memo | None, left_at: float, memo: Memo, now: float) -> bool:
    """Whether the memory must be written, when `left` was written last, at `left_at`."""
    if left is None or left.mode is not memo.mode or _news(left.memory) != _news(memo.memory):
        return True
    seconds = BUSY_SECONDS if memo.memory.idle_since is None else QUIET_SECONDS
    return not 0 <= now - left_at < seconds


def recall(memo: Memo, decided_at: float | None) -> Memory:
    """The memory as of the last decision, `decided_at`; None: not known, so that of the memo."""
    memory = memo.memory
    if decided_at is None or memory.at is None or decided_at <= memory.at:
        return memory
    # Idle means that each decision knew the metrics.
    known_at = memory.known_at if memory.idle_since is None else decided_at
    *earlier, last = memory.wishes or (None,)
    # It was wished again each time: another wish would have been news.
    wishes = memory.wishes if last is None else (*earlier, replace(last, at=decided_at))
    return replace(memory, at=decided_at, known_at=known_at, wishes=wishes)


def _news(memory: Memory) -> tuple[Any, ...]:
    """What does not only grow older from one decision to the next."""
    return (
        memory.replicas,
        memory.decided,
        memory.changes,
        memory.reversals,
        memory.capacity_key,
        memory.pending_since is None,
        memory.full_since is None,
        memory.missed_since is None,
        memory.idle_since is None,
        [wish.replicas for wish in memory.wishes],
    )


def write(memo: Memo) -> str:
    """As JSON."""
    return msgspec.json.encode(memo).decode()


def read(text: str) -> Memo | None:
    """None: there is none, or another version's that does not read."""
    try:
        return msgspec.json.decode(text, type=Memo)
    except msgspec.DecodeError:
        return None
