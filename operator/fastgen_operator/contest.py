"""Tells when somebody else keeps changing a child, so that nobody fights for ever."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import Id
from fastgen_operator.fingerprint import APPLIED_ANNOTATION
from fastgen_operator.observed import Problem

CONTESTED: Final = "Contested"
REPAIRS: Final = 5
WINDOW: Final = timedelta(minutes=10)
"""A child is put back at most REPAIRS times within a WINDOW: more often is a fight."""


class Repairs:
    """When each child was put back lately. Time is an argument."""

    def __init__(self) -> None:
        self._times: dict[Id, tuple[datetime, ...]] = {}

    def note(self, identity: Id, now: datetime) -> None:
        """The child is put back now."""
        self._times[identity] = (*self._recent(identity, now), now)

    def wait(self, identity: Id, now: datetime) -> timedelta | None:
        """How long it is left as others made it; None: it may be put back at once."""
        recent = self._recent(identity, now)
        return recent[-REPAIRS] + WINDOW - now if len(recent) >= REPAIRS else None

    def _recent(self, identity: Id, now: datetime) -> tuple[datetime, ...]:
        return tuple(at for at in self._times.get(identity, ()) if now - at < WINDOW)


def is_repair(marked: KubernetesObject, observed: KubernetesObject | None) -> bool:
    """Whether applying it again would only undo what others did: our own part is the same."""
    mark = marked["metadata"]["annotations"][APPLIED_ANNOTATION]
    return observed is not None and mark == (observed["metadata"].get("annotations") or {}).get(
        APPLIED_ANNOTATION
    )


def contested(identity: Id, found: KubernetesObject | None) -> Problem:
    """What to tell about a child that is left as others made it; `found` with managedFields."""
    writer = last_writer(found) if found else ""
    last = f", last by {writer}" if writer else ""
    return Problem(
        CONTESTED,
        f"{' '.join(identity)} was changed by others{last}, and put back, {REPAIRS} times within "
        f"{WINDOW.seconds // 60} minutes: it is left as it is for a while; stop whoever changes it",
    )


def last_writer(found: KubernetesObject) -> str:
    """The field manager, not ours, that wrote last; empty: none is known."""
    written = sorted(_writes(found), key=lambda each: str(each.get("time", "")))
    return str(written[-1]["manager"]) if written else ""


def _writes(found: KubernetesObject) -> Iterator[dict[str, Any]]:
    for entry in found["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.OPERATOR_MANAGER and entry.get("subresource") != "status":
            yield entry
