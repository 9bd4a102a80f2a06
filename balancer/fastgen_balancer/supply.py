"""How long a replica takes to come where nodes must come first.

A cold start is counted from the node that takes the replica. While none does, it is as long as it
took at most when some had to wait before, and no less than what those that wait have waited: of
many that waited together, one comes soon after another.
"""

from dataclasses import dataclass
from typing import Final

UNKNOWN_SECONDS: Final = 300.0
"""For a replica that waits for a node, while none was seen to come: machines with GPUs take minutes
to be made."""
KEPT_SECONDS: Final = 2 * 3600.0
"""Nodes may be there at once next time."""
LONGEST_SECONDS: Final = 600.0
"""Nobody asks for what is needed later; replicas that wait for a quota wait for ever."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """since: replicas that no node took have been waiting, or start by now; None: none is. took:
    the most seconds that one of them took to be ready lately, `took_at` when."""

    since: float | None = None
    took: float = 0.0
    took_at: float = 0.0


def note(before: Waiting, blocked: bool, missing: bool, risen: bool, now: float) -> Waiting:
    """Takes in a moment. blocked: no node takes what is missing. risen: one more is ready."""
    since, took, took_at = before.since, before.took, before.took_at
    if since is not None and risen:
        if now - since >= took or now - took_at > KEPT_SECONDS:
            took, took_at = now - since, now
        since = now
    if not missing:
        since = None
    elif since is None and blocked:
        since = now
    return Waiting(since, took, took_at)


def supply_seconds(waiting: Waiting, cold_start_seconds: float, now: float) -> float:
    """Until a replica that is asked for now serves."""
    seconds = waiting.took if now - waiting.took_at <= KEPT_SECONDS else 0.0
    if waiting.since is not None:
        seconds = max(seconds or UNKNOWN_SECONDS, now - waiting.since)
    return max(cold_start_seconds, min(LONGEST_SECONDS, seconds))


def moved(waiting: Waiting, seconds: float) -> Waiting:
    """By a clock that has jumped."""
    since = None if waiting.since is None else waiting.since + seconds
    return Waiting(since, waiting.took, waiting.took_at + seconds)
