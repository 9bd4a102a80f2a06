"""The other balancer pods that serve a deployment: where they are, and what they hold of it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import httpx2
import msgspec

from fastgen_api.names import Port
from fastgen_balancer.endpoints import format_address
from fastgen_balancer.signals import LocalSignals

LOAD_PATH: Final = "/load"
WAKE_PATH: Final = "/wake"
DEPLOYMENT: Final = "deployment"
"""Parameter of both: whose load, or whose leader."""
ANSWER_SECONDS: Final = 1.0
"""A pod that takes longer is not waited for."""

Count = Annotated[int, msgspec.Meta(ge=0)]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BalancerLoad:
    """What one balancer pod alone knows, and the leader must."""

    queued_requests: Count
    in_flight_requests: Count


@dataclass(frozen=True, slots=True)
class Peer:
    """Another balancer pod that runs."""

    name: str
    host: str
    serves: bool
    """It gets new requests; one that does not may still hold some, and may be gone already."""

    @property
    def url(self) -> str:
        return f"http://{format_address(self.host, Port.BALANCER_PEERS)}"


def load_of(signals: LocalSignals) -> BalancerLoad:
    """What this pod tells the others."""
    return BalancerLoad(signals.queued_requests, signals.in_flight_requests)


def together(
    own: LocalSignals, peers: Iterable[Peer], loads: Mapping[str, BalancerLoad]
) -> LocalSignals:
    """The signals over all balancer pods; `loads`: those of the pods that answered, by name.

    Endpoints are counted as this pod sees them: all pods watch the same ones.
    """
    return replace(
        own,
        queued_requests=own.queued_requests + sum(each.queued_requests for each in loads.values()),
        in_flight_requests=own.in_flight_requests
        + sum(each.in_flight_requests for each in loads.values()),
        unheard_balancers=sum(peer.serves and peer.name not in loads for peer in peers),
    )


def peers_of(pods: Iterable[Mapping[str, Any]], own: str) -> tuple[Peer, ...]:
    """The other pods that may hold requests, of Pod objects; `own` is this pod's name."""
    found = (_peer(pod) for pod in pods if pod["metadata"]["name"] != own)
    return tuple(peer for peer in found if peer is not None)


def _peer(pod: Mapping[str, Any]) -> Peer | None:
    status = pod.get("status") or {}
    host = status.get("podIP")
    if not host or status.get("phase") != "Running":
        return None
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    meta = pod["metadata"]
    return Peer(meta["name"], host, ready and not meta.get("deletionTimestamp"))


class Peers:
    """The other balancer pods that serve one deployment, as they are just now."""

    def __init__(self, http: httpx2.AsyncClient, own: str, deployment: str) -> None:
        """`own` is this pod's name."""
        self._http = http
        self._own = own
        self._whose = {DEPLOYMENT: deployment}
        self._known: tuple[Peer, ...] = ()

    def changed(self, objects: Mapping[str, Any]) -> None:
        """All balancer pods that serve it, by name, as the API server tells of them."""
        self._known = peers_of((each.to_dict() for each in objects.values()), self._own)

    async def wake(self, name: str) -> None:
        """Wakes that pod's leader, if it is one; a pod that is not known is not called.

        Raises httpx2.HTTPError.
        """
        peer = next((each for each in self._known if each.name == name), None)
        if peer is not None:
            response = await self._http.post(
                f"{peer.url}{WAKE_PATH}", params=self._whose, timeout=ANSWER_SECONDS
            )
            response.raise_for_status()

    async def signals(self, own: Callable[[], LocalSignals]) -> LocalSignals:
        """Asks all of them at once, and adds what this pod sees itself; never raises."""
        asked = self._known
        answers = await asyncio.gather(*(self._ask(peer) for peer in asked))
        loads = {
            peer.name: load for peer, load in zip(asked, answers, strict=True) if load is not None
        }
        return together(own(), asked, loads)

    async def _ask(self, peer: Peer) -> BalancerLoad | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await self._http.get(f"{peer.url}{LOAD_PATH}", params=self._whose)
                response.raise_for_status()
                return msgspec.json.decode(response.content, type=BalancerLoad)
        except (httpx2.HTTPError, TimeoutError, msgspec.MsgspecError) as error:
            log.debug("a peer does not answer", extra={"peer": peer.name, "error": repr(error)})
            return None
