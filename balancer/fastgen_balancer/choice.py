"""Whose a request is: the member that it names, or the deployment that this one's routes name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fastgen_api.names import Header
from fastgen_api.spec import Route, RouteMatch
from fastgen_balancer.pick import Refusal
from fastgen_balancer.roster import Entry, Roster

MOST_NAMES: Final = 20
"""Of models, that a refusal tells."""
MOST_CHARACTERS: Final = 128
"""Of a name that a client sent, that a refusal repeats."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where a request belongs."""

    deployment: str
    judged: bool
    """Whether the model that it names was looked at here; else the replica does."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It belongs nowhere, and why, for its client to read."""

    refusal: Refusal
    message: str = ""


def choose(
    roster: Roster,
    model: str | None,
    headers: Mapping[str, str],
    prompt_tokens: Callable[[str], int],
) -> Chosen | Unplaced:
    """Chooses for a request that costs an engine.

    `model`: as its body says; None where that does not read. `headers` have lower-case names.
    `prompt_tokens` estimates its prompt for a deployment.
    """
    if not roster.entries:
        return Unplaced(Refusal.NO_ENDPOINTS)
    member = roster.sole or _named(roster, model, headers.get(Header.MODEL, ""))
    if isinstance(member, Unplaced):
        return member
    if not roster.is_shared and model not in (None, "", member.served_name):
        # Its replicas say so, and no other deployment would take it either.
        return Chosen(member.deployment, False)
    target = routed(member.routes, headers, lambda: prompt_tokens(member.deployment))
    if target is not None:
        return Chosen(target, True)
    return Chosen(member.deployment, roster.is_shared)


def routed(
    routes: Iterable[Route], headers: Mapping[str, str], prompt_tokens: Callable[[], int]
) -> str | None:
    """The deployment of the first route that fits; None: none does."""
    return next(
        (way.deployment for way in routes if _fits(way.match, headers, prompt_tokens)), None
    )


def _fits(match: RouteMatch, headers: Mapping[str, str], prompt_tokens: Callable[[], int]) -> bool:
    header, least = match.header, match.min_prompt_tokens
    if header is None and least is None:
        return False
    if header is not None and headers.get(header.name.lower()) != header.value:
        return False
    return least is None or prompt_tokens() >= least


def named_by_header(roster: Roster, headers: Mapping[str, str]) -> Entry | None:
    """The member that a client's header names, whatever the body says."""
    return _member(roster, headers.get(Header.MODEL, "")) if roster.is_shared else None


def _named(roster: Roster, model: str | None, deployment: str) -> Entry | Unplaced:
    if deployment:
        names = [each.deployment for each in roster.members]
        what = f"No deployment {deployment[:MOST_CHARACTERS]!r}, which {Header.MODEL} names,"
        return _member(roster, deployment) or _unknown(what, names)
    if not model:
        message = (
            "The request names no model that could be read: set the field `model` to one of "
            f"{_list(roster.owners)}, or the header {Header.MODEL} to a deployment."
        )
        return Unplaced(Refusal.MISSING_MODEL, message)
    owner = _member(roster, roster.owners.get(model, ""))
    return owner or _unknown(f"No model {model[:MOST_CHARACTERS]!r}", roster.owners)


def unknown_model(roster: Roster, model: str) -> Unplaced:
    """What is said of a model that nobody here serves."""
    return _unknown(f"No model {model[:MOST_CHARACTERS]!r}", roster.owners)


def _unknown(what: str, names: Iterable[str]) -> Unplaced:
    return Unplaced(Refusal.UNKNOWN_MODEL, f"{what} is served here; there are {_list(names)}.")


def _member(roster: Roster, deployment: str) -> Entry | None:
    return next((each for each in roster.members if each.deployment == deployment), None)


def _list(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    more = ["…"] if len(quoted) > MOST_NAMES else []
    return ", ".join(quoted[:MOST_NAMES] + more)
