"""The picker: everything that the balancer knows and decides, in one process."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry

from fastgen_balancer.access_log import METHOD as TELL
from fastgen_balancer.access_log import AccessLog, AccessLogStream
from fastgen_balancer.arrival import Arrivals
from fastgen_balancer.calls import Method
from fastgen_balancer.endpoint_files import forget_endpoints, write_reach
from fastgen_balancer.endpoint_picker import EndpointPicker
from fastgen_balancer.ext_proc import METHOD as PROCESS
from fastgen_balancer.ext_proc import ExternalProcessor
from fastgen_balancer.member import Identity, Member
from fastgen_balancer.metrics import UnplacedMetrics
from fastgen_balancer.peers import BalancerLoad, load_of
from fastgen_balancer.quarantine import Quarantine
from fastgen_balancer.quarantine_share import Share
from fastgen_balancer.roster import Roster
from fastgen_balancer.settings import Settings

SYNC_GRACE_SECONDS: Final = 10.0
"""How long one deployment whose endpoints cannot be read keeps a new pod from serving others."""

log = logging.getLogger(__name__)


class Picker:
    """Invariant: each deployment of the roster has a `Member`, and its files are Envoy's.

    Members that have left the roster stay until their last stream has ended. Needs a running event
    loop.
    """

    def __init__(self, directory: Path, namespace: str) -> None:
        self.roster = Roster()
        self.members: dict[str, Member] = {}
        self.on_gone: Callable[[str], None] = lambda name: None
        """Called when the last stream of a deployment that has left has ended."""
        self._directory = directory
        self._namespace = namespace
        self._registry = CollectorRegistry()
        self._served_since: float | None = None
        self._has_synced = False
        self.arrivals = Arrivals(
            lambda: self.roster,
            self.members,
            UnplacedMetrics(self._registry, namespace),
            time.monotonic,
        )
        self._quarantines: dict[str, Quarantine] = {}
        self.share = Share(self._quarantines, time.monotonic)
        self.access_log = AccessLog(lambda: self.roster, self.members)

    def methods(self) -> dict[str, Method]:
        """What our own Envoy calls."""
        return {
            PROCESS: partial(ExternalProcessor, self.arrivals),
            TELL: partial(AccessLogStream, self.access_log),
        }

    def endpoint_picker(self) -> EndpointPicker:
        """What answers gateways; endpoints, load and queue are those of our own Envoy."""
        return EndpointPicker(self.arrivals, time.monotonic, Random())

    def serve(self, roster: Roster) -> None:
        """Serves these deployments from now on.

        One that is the same as before keeps its queue and its books.
        """
        self._served_since = self._served_since or time.monotonic()
        for entry in roster.entries:
            member = self.members.get(entry.deployment)
            if member is None:
                identity = Identity(entry.deployment, self._namespace)
                self._join(Member(self._directory, identity, entry.settings))
            elif member.settings != entry.settings:
                member.set_settings(entry.settings)
        self.roster = roster
        for name in self._leaving():
            self.members[name].leave()
        self._tell_envoy()

    def sweep(self) -> int:
        """Looks after each member, once a second; returns how many requests were never told of."""
        lost = 0
        for member in self.members.values():
            try:
                lost += member.sweep()
            except Exception:
                # A fault in one deployment's books is not to reach the others.
                log.exception("a member's sweep failed", extra={"deployment": member.name})
        if gone := [each for each in self._leaving() if self.members[each].is_idle]:
            for name in gone:
                self.members.pop(name).end()
                del self._quarantines[name]
                self.on_gone(name)
            self._tell_envoy()
            for name in gone:
                forget_endpoints(self._directory, name)
        return lost

    @property
    def has_synced(self) -> bool:
        """Whether requests may come: the endpoints are known; once true, it stays so."""
        if not self._has_synced and self._served_since is not None:
            synced = [self.members[each.deployment].has_synced for each in self.roster.entries]
            waited = time.monotonic() - self._served_since
            is_enough = all(synced) or (any(synced) and waited > SYNC_GRACE_SECONDS)
            self._has_synced = bool(synced) and is_enough
        return self._has_synced

    @property
    def drain_seconds(self) -> float:
        """Longest wait for the streams of any member."""
        return max((each.drain_seconds for each in self._settings()), default=0.0)

    @property
    def drain_limit_seconds(self) -> float:
        """The same with the wait for what is held."""
        return max((each.drain_limit_seconds for each in self._settings()), default=0.0)

    def registries(self) -> tuple[CollectorRegistry, ...]:
        """Whose metrics this process exposes."""
        members = tuple(self.members.values())
        return (self._registry, *(each for member in members for each in member.registries()))

    def load(self, deployment: str) -> BalancerLoad:
        """What this pod holds of a deployment's requests; "": of the one that all are for.

        Of one that it does not serve it holds none.
        """
        member = self.members.get(deployment or self._sole_name())
        return load_of(member.signals()) if member else BalancerLoad(0, 0)

    def wake(self, deployment: str) -> None:
        """Lets the deployment's autoscaler decide at once, where it runs in this process."""
        if (member := self.members.get(deployment or self._sole_name())) is not None:
            member.alarm.ring()

    async def close(self) -> None:
        """Ends what runs by itself."""
        for member in self.members.values():
            await member.close()

    def _sole_name(self) -> str:
        return self.roster.sole.deployment if self.roster.sole else ""

    def _join(self, member: Member) -> None:
        self.members[member.name] = member
        self._quarantines[member.name] = member.quarantine
        member.quarantine.on_news = self.share.tell
        member.reception.spread = self.share.spread

    def _settings(self) -> list[Settings]:
        return [member.settings for member in self.members.values()]

    def _leaving(self) -> list[str]:
        return [name for name in self.members if self.roster.entry(name) is None]

    def _tell_envoy(self) -> None:
        write_reach(self._directory, self.roster.reach(self._leaving()))
