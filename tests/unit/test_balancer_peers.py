"""What the balancer pods of a deployment know of one another."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.names import Port
from fastgen_balancer.peers import BalancerLoad, Peer, Peers, load_of, peers_of, together
from fastgen_balancer.signals import LocalSignals
from fastgen_balancer.web import peers_app

OWN = LocalSignals(
    queued_requests=1, in_flight_requests=2, ready_endpoints=3, saturated_endpoints=1
)
OTHER = LocalSignals(
    queued_requests=70, in_flight_requests=70, ready_endpoints=0, saturated_endpoints=0
)
counts = st.integers(0, 1000)


def pod(
    name: str, host: str = "10.0.0.1", phase: str = "Running", ready: str = "True", **meta: str
) -> dict[str, Any]:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]
    status = {"podIP": host, "phase": phase, "conditions": conditions}
    return {"metadata": {"name": name, **meta}, "status": status}


@pytest.mark.parametrize(
    ("found", "peer"),
    [
        (pod("b"), Peer("b", "10.0.0.1", True)),
        (pod("b", ready="False"), Peer("b", "10.0.0.1", False)),
        (pod("b", deletionTimestamp="2026-01-01T00:00:00Z"), Peer("b", "10.0.0.1", False)),
        (pod("own"), None),
        (pod("b", host=""), None),
        (pod("b", phase="Pending"), None),
        (pod("b", phase="Succeeded"), None),
        ({"metadata": {"name": "b"}}, None),
    ],
    ids=["serves", "unready", "ending", "own", "no-address", "pending", "ended", "new"],
)
def test_who_may_hold_requests(found: dict[str, Any], peer: Peer | None) -> None:
    assert peers_of([found], "own") == (() if peer is None else (peer,))


def test_addresses_of_both_families() -> None:
    assert Peer("b", "10.0.0.1", True).url == f"http://10.0.0.1:{Port.BALANCER_PEERS}"
    assert Peer("b", "fd00::1", True).url == f"http://[fd00::1]:{Port.BALANCER_PEERS}"


@given(st.lists(st.tuples(st.booleans(), st.none() | st.tuples(counts, counts)), max_size=6))
def test_requests_add_up_and_silence_is_told(
    others: list[tuple[bool, tuple[int, int] | None]],
) -> None:
    peers = [Peer(f"b{i}", "h", serves) for i, (serves, _) in enumerate(others)]
    loads = {f"b{i}": BalancerLoad(*load) for i, (_, load) in enumerate(others) if load}
    found = together(OWN, peers, loads)
    told = [load for _, load in others if load]
    assert found.queued_requests == OWN.queued_requests + sum(queued for queued, _ in told)
    assert found.in_flight_requests == OWN.in_flight_requests + sum(flight for _, flight in told)
    assert found.unheard_balancers == sum(serves and not load for serves, load in others)
    assert (found.ready_endpoints, found.saturated_endpoints) == (3, 1)


class Known:
    """A Pod as the client gives it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def to_dict(self) -> dict[str, Any]:
        return self._found


def among(answer: Callable[[httpx2.Request], httpx2.Response], *names: str) -> Peers:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    peers = Peers(http, "own", "chat")
    peers.changed({name: Known(pod(name, host=name)) for name in (*names, "own")})
    return peers


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"queued_requests":-1,"in_flight_requests":0}', b"\xff"]
)
async def test_an_answer_that_is_none_counts_as_silence(body: bytes) -> None:
    peers = among(lambda _: httpx2.Response(200, content=body), "b", "c")
    found = await peers.signals(lambda: OWN)
    assert found == together(OWN, peers_of([pod("b"), pod("c")], "own"), {})
    assert found.unheard_balancers == 2


async def test_a_slow_or_broken_peer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastgen_balancer.peers.ANSWER_SECONDS", 0.05)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "slow":
            await asyncio.sleep(30)
        if request.url.host == "gone":
            raise httpx2.ConnectError("refused")
        if request.url.host == "broken":
            return httpx2.Response(500)
        return httpx2.Response(200, json={"queued_requests": 5, "in_flight_requests": 7})

    peers = among(answer, "slow", "gone", "broken", "well")
    async with asyncio.timeout(5):
        found = await peers.signals(lambda: OWN)
    assert (found.queued_requests, found.in_flight_requests) == (6, 9)
    assert found.unheard_balancers == 3


async def test_one_pod_tells_another_what_it_holds_and_is_woken_by_it() -> None:
    woken: list[str] = []
    app = peers_app(lambda name: load_of(OWN if name == "chat" else OTHER), woken.append)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        peers = Peers(http, "own", "chat")
        peers.changed({"b": Known(pod("b"))})
        found = await peers.signals(lambda: OWN)
        assert (found.queued_requests, found.in_flight_requests) == (2, 4)
        assert found.unheard_balancers == 0
        await peers.wake("b")
        assert woken == ["chat"]
        await peers.wake("nobody")
        assert woken == ["chat"]
        url = f"http://10.0.0.1:{Port.BALANCER_PEERS}"
        assert (await http.get(f"{url}/wake")).status_code == 405
        for path in ("/drain", "/metrics", "/healthz"):
            assert (await http.get(url + path)).status_code == 404
