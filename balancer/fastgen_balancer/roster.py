"""Whom a balancer serves, as a value that is made anew at each change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fastgen_api import sharing
from fastgen_api.sharing import Declared
from fastgen_api.spec import Route
from fastgen_balancer.envoy_routes import Reach
from fastgen_balancer.settings import MAX_WAIT_SECONDS, Settings, settings_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One deployment that the balancer reaches."""

    deployment: str
    served_name: str
    settings: Settings
    created: int = 0
    """Seconds since the epoch."""
    routes: tuple[Route, ...] = ()
    """Its own, those to deployments that are not there left out."""
    is_member: bool = True
    """False: only a member's routes lead to it, and another balancer scales it."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Members, the oldest one first, and then what their routes lead to."""

    entries: tuple[Entry, ...] = ()
    is_shared: bool = False
    """Whether a request must name one of the members."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The member that has each served name."""

    @property
    def members(self) -> tuple[Entry, ...]:
        return tuple(each for each in self.entries if each.is_member)

    @property
    def sole(self) -> Entry | None:
        """The member that all requests are for; None where they name one."""
        return None if self.is_shared else next(iter(self.entries), None)

    def entry(self, deployment: str) -> Entry | None:
        return next((each for each in self.entries if each.deployment == deployment), None)

    def reach(self, leaving: Sequence[str] = ()) -> Reach:
        """What Envoy must know of it; of `leaving` ones only streams that have begun go on."""
        members = tuple(each.deployment for each in self.members)
        return Reach(
            (*(each.deployment for each in self.entries), *leaving),
            self.sole.deployment if self.sole else None,
            members if self.is_shared else (),
        )


def roster_of(
    balancer: str, declared: Sequence[Declared], max_wait_seconds: float = MAX_WAIT_SECONDS
) -> Roster:
    """The roster of a balancer, from the FastGenDeployments of its namespace."""
    members = sharing.members_of(balancer, declared)
    names = {each.name for each in members}
    pods = sharing.pods_of(members)
    entries = []
    for each in sharing.reachable_of(balancer, declared):
        there = sharing.targets_of(each, declared) if each.name in names else ()
        entries.append(
            Entry(
                each.name,
                sharing.served_name(each.name, each.spec),
                settings_of(each.spec, max_wait_seconds, pods),
                _seconds(each.created),
                tuple(way for way in each.spec.balancer.routes if way.deployment in there),
                each.name in names,
            )
        )
    return Roster(tuple(entries), sharing.is_shared(members), sharing.served_names(members))


def static_roster(served: Sequence[str], settings: Settings) -> Roster:
    """The roster outside Kubernetes: a model each; the one name "" is a deployment alone."""
    if tuple(served) == ("",):
        return Roster((Entry("static", "", settings),))
    entries = tuple(Entry(name, name, settings) for name in dict.fromkeys(served))
    return Roster(entries, True, {name: name for name in served})


def _seconds(timestamp: str) -> int:
    try:
        return int(datetime.fromisoformat(timestamp).timestamp())
    except ValueError:
        return 0
