"""What goes on for each deployment while the picker lives in a cluster, apart from the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry

from fastgen_api import names, sharing
from fastgen_api.sharing import Declared
from fastgen_balancer.cluster import watch_endpoints
from fastgen_balancer.leader import lead
from fastgen_balancer.lease import lease_holder
from fastgen_balancer.member import Member
from fastgen_balancer.peers import Peers
from fastgen_balancer.picker import Picker
from fastgen_balancer.signals import LocalSignals
from fastgen_balancer.wake import Waker

PAUSE_SECONDS: Final = 10.0
"""Before what broke off is tried again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One deployment's part."""

    member: Member
    scales: bool
    """Whether its autoscaler may run here; else that of another balancer does."""
    peers: Peers
    tasks: tuple[asyncio.Task[None], ...]


class Household:
    """Invariant: each deployment that the picker has is followed by tasks of its own.

    They outlive one another: whatever ends in error is logged and tried again.
    """

    def __init__(
        self,
        picker: Picker,
        client: AsyncClient,
        http: httpx2.AsyncClient,
        namespace: str,
        pod: str,
        prometheus_url: str | None,
    ) -> None:
        """`pod`: the name of this one."""
        self._picker = picker
        self._client = client
        self._http = http
        self._namespace = namespace
        self._pod = pod
        self._prometheus_url = prometheus_url
        self._tenancies: dict[str, Tenancy] = {}
        self._serving: dict[str, tuple[str, ...]] = {}
        """The balancers that serve each deployment."""
        self._pods: Mapping[str, Any] = {}
        self._neighbours = Peers(http, pod)
        """Those that serve any deployment that this pod serves."""
        self._sharing = asyncio.create_task(
            _insist(lambda: picker.share.run(self._neighbours), "the quarantines' share"),
            name="share",
        )
        picker.on_gone = self._leave

    def follow(self, declared: Sequence[Declared]) -> None:
        """Follows whom the picker serves now, and to its end whom it serves no more."""
        scaled = {entry.deployment for entry in self._picker.roster.members}
        for name, member in self._picker.members.items():
            known = self._tenancies.get(name)
            if known is not None and known.scales != (name in scaled):
                self._leave(name)
            if name not in self._tenancies:
                self._tenancies[name] = self._begin(member, name in scaled)
        self._serving = {
            name: sharing.balancers_serving(name, declared) for name in self._tenancies
        }
        self._tell_peers()

    def pods_changed(self, objects: Mapping[str, Any]) -> None:
        """All balancer pods of the namespace, by name, as the API server tells of them."""
        self._pods = objects
        self._tell_peers()

    async def close(self) -> None:
        """Ends all tasks, and gives the Leases back."""
        tasks = [task for tenancy in self._tenancies.values() for task in tenancy.tasks]
        for name in list(self._tenancies):
            self._leave(name)
        self._sharing.cancel()
        await asyncio.gather(*tasks, self._sharing, return_exceptions=True)

    def _begin(self, member: Member, scales: bool) -> Tenancy:
        peers = Peers(self._http, self._pod, member.name)
        lease = names.balancer_name(member.name)
        waker = Waker(
            self._pod,
            member.alarm.ring,
            lambda: lease_holder(self._client, self._namespace, lease),
            peers.wake,
        )
        member.on_wait = waker.wake
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "endpoints": lambda: watch_endpoints(
                self._client, member.name, self._namespace, member.set_endpoints
            ),
            "waker": waker.run,
        }
        if scales:
            parts["autoscaler"] = lambda: self._lead(member, peers)
        tasks = (
            asyncio.create_task(_insist(part, f"{member.name}'s {what}"), name=what)
            for what, part in parts.items()
        )
        return Tenancy(member, scales, peers, tuple(tasks))

    def _leave(self, name: str) -> None:
        tenancy = self._tenancies.pop(name)
        for task in tenancy.tasks:
            task.cancel()
        tenancy.member.scaling_registry = None

    async def _lead(self, member: Member, peers: Peers) -> None:
        async def signals() -> LocalSignals:
            return await peers.signals(member.signals)

        # Who leads before it knows all replicas takes those that it does not know yet for lost.
        await member.synced.wait()
        # Metrics of a new life of the autoscaler would clash with those of the last.
        member.scaling_registry = CollectorRegistry()
        await lead(
            self._client,
            self._namespace,
            member.name,
            self._pod,
            signals,
            self._prometheus_url,
            registry=member.scaling_registry,
            pause=member.alarm.pause,
        )

    def _tell_peers(self) -> None:
        near: dict[str, Any] = {}
        for name, tenancy in self._tenancies.items():
            serving = self._serving.get(name, ())
            pods = {key: pod for key, pod in self._pods.items() if _balancer(pod) in serving}
            tenancy.peers.changed(pods)
            near |= pods
        self._neighbours.changed(near)


async def _insist(part: Callable[[], Awaitable[None]], what: str) -> None:
    """Runs it until it is cancelled; a fault in it must not end what carries the requests."""
    while True:
        try:
            await part()
        except Exception:
            log.exception("%s broke off", what)
        await asyncio.sleep(PAUSE_SECONDS)


def _balancer(pod: Any) -> str:
    return str((pod.metadata.labels or {}).get(names.DEPLOYMENT_LABEL, ""))
