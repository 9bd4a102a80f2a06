"""The picker follows the FastGenDeployments of its namespace, whatever becomes of one of them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from api_server import APIServer, api_server
from balancer_process import eventually

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_balancer import picker as picker_module
from fastgen_balancer.peers import BalancerLoad
from fastgen_balancer.picker import Picker
from fastgen_balancer.quarantine_share import Share
from fastgen_balancer.residence import live_in_cluster
from fastgen_balancer.web import peers_app
from fastgen_cli.plan import free_ports

DEPLOYMENTS, SLICES = names.PLURAL, "endpointslices"


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[APIServer]:
    async with api_server() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        monkeypatch.setenv("POD_NAME", "own")
        yield server


@contextlib.asynccontextmanager
async def living(folder: Path, balancer: str) -> AsyncIterator[Picker]:
    os.makedirs(folder, exist_ok=True)
    picker = Picker(folder, "team")
    life = asyncio.create_task(live_in_cluster(picker, folder, balancer, "team", None, 30.0))
    try:
        yield picker
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await picker.close()


async def deploy(api: APIServer, name: str, /, deep: str = "", **spec: Any) -> None:
    meta = {"name": name, "uid": name, "generation": api._version + 1}
    meta |= {"creationTimestamp": f"2026-01-01T00:00:{len(api.objects.get(DEPLOYMENTS, {})):02}Z"}
    spec = {"model": {"source": "file:///m"}, "scaling": {"mode": "Disabled"}} | spec
    found = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}
    await api.put(DEPLOYMENTS, found | ({"deep": deep} if deep else {}))


async def replica(api: APIServer, deployment: str, number: int) -> None:
    """A pod and its EndpointSlice; nobody listens at its address."""
    name, labels = f"{deployment}-{number}", {
        names.DEPLOYMENT_LABEL: deployment,
        names.COMPONENT_LABEL: Component.REPLICA.value,
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
    await api.put("pods", pod)
    meta = {"name": name,
            "labels": {"kubernetes.io/service-name": names.replica_name(deployment)}}  # fmt: skip
    target = {"kind": "Pod", "name": name}
    endpoints = [{"addresses": ["127.0.0.9"], "conditions": {"ready": True}, "targetRef": target}]
    await api.put(SLICES, {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
        "addressType": "IPv4", "ports": [], "endpoints": endpoints,
    })  # fmt: skip


def serves(picker: Picker, *deployments: str, shared: bool = True) -> Callable[[], bool]:
    """Whether the roster has these members, each with one endpoint."""

    def check() -> bool:
        members = [each.deployment for each in picker.roster.members]
        known = [len(picker.members[each].fleet.endpoints) for each in members]
        is_so = picker.roster.is_shared == shared and picker.has_synced
        return members == list(deployments) and set(known) == {1} and is_so

    return check


async def test_members_come_and_go_as_they_are_declared(api: APIServer, tmp_path: Path) -> None:
    await deploy(api, "chat")
    await replica(api, "chat", 0)
    async with living(tmp_path / "run", "chat") as picker:
        await eventually(serves(picker, "chat", shared=False))
        chat = picker.members["chat"]
        await deploy(api, "batch", balancer={"name": "chat", "maxQueuedRequests": 8})
        await replica(api, "batch", 0)
        await deploy(api, "stranger", balancer={"name": "another"})
        await eventually(serves(picker, "chat", "batch"))
        assert picker.members["chat"] is chat
        assert picker.members["batch"].settings.max_queued_requests == 4
        await deploy(api, "batch", balancer={"name": "chat", "maxQueuedRequests": 20})
        await eventually(lambda: picker.members["batch"].settings.max_queued_requests == 10)
        await api.remove(DEPLOYMENTS, "batch")
        await eventually(serves(picker, "chat", shared=False))
        picker.sweep()
        assert list(picker.members) == ["chat"]
        # Who deletes the last one deletes this pod, unless it is to go on.
        await api.remove(DEPLOYMENTS, "chat")
        await asyncio.sleep(0.3)
        assert serves(picker, "chat", shared=False)()


async def test_one_that_cannot_be_read_leaves_the_others_as_they_were(
    api: APIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picker_module, "SYNC_GRACE_SECONDS", 0.5)
    api.broken = names.replica_name("broken")
    for name in ("well", "broken"):
        await deploy(api, name, balancer={"name": "x"})
        await replica(api, name, 0)
    await deploy(api, "nonsense", engine="none", balancer={"name": "x"})
    await deploy(api, "abyss", deep="[" * 9000 + "]" * 9000)
    async with living(tmp_path / "run", "x") as picker:
        await eventually(lambda: picker.has_synced)
        assert [each.deployment for each in picker.roster.members] == ["well", "broken", "nonsense"]
        await eventually(lambda: picker.members["well"].fleet.endpoints)
        assert not picker.members["broken"].has_synced
        await replica(api, "nonsense", 0)
        await eventually(lambda: picker.members["nonsense"].fleet.endpoints)
        # News go on coming past what lies deeper than decoders go.
        await deploy(api, "abyss", deep="[" * 9001 + "]" * 9001)
        await deploy(api, "late", balancer={"name": "x"})
        await replica(api, "late", 0)
        await eventually(lambda: "late" in picker.members)
        await eventually(lambda: picker.members["late"].fleet.endpoints)


async def test_a_successor_begins_with_what_was_known(
    api: APIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await deploy(api, name, balancer={"name": "x", "maxQueuedRequests": 6})
        await replica(api, name, 0)
    async with living(tmp_path / "run", "x") as picker:
        await eventually(serves(picker, "a", "b"))
    api.url = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    async with living(tmp_path / "run", "x") as picker:
        await eventually(lambda: picker.roster.entries)
        assert [each.deployment for each in picker.roster.members] == ["a", "b"]
        assert [len(each.fleet.endpoints) for each in picker.members.values()] == [1, 1]
        assert picker.members["a"].settings.max_queued_requests == 3
        assert not picker.has_synced, "no traffic for a pod that knows only what once was"


async def test_who_does_not_know_the_replicas_yet_does_not_lead(
    api: APIServer, tmp_path: Path
) -> None:
    """It would take those that it does not know for lost, and hold one more for hours."""
    api.broken = "kubernetes.io/service-name"
    await deploy(api, "chat", scaling={"mode": "Auto"})
    async with living(tmp_path / "run", "chat") as picker:
        await eventually(lambda: "chat" in picker.members)
        await asyncio.sleep(3)
        assert not api.objects.get("leases")
        api.broken = ""
        await eventually(lambda: "chat-balancer" in api.objects.get("leases", {}), 30)
        assert picker.members["chat"].has_synced


async def test_a_targets_leader_is_woken_in_its_own_balancers_pod(
    api: APIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(Port, "BALANCER_PEERS", port)
    woken: list[str] = []
    config = uvicorn.Config(
        peers_app(lambda _: BalancerLoad(0, 0), woken.append, Share({}, lambda: 0.0)),
        port=port, log_config=None, lifespan="off",
    )  # fmt: skip
    server = uvicorn.Server(config)
    monkeypatch.setattr(server, "capture_signals", contextlib.nullcontext)
    serving = asyncio.create_task(server.serve())
    route = {"match": {"minPromptTokens": 1}, "deployment": "batch"}
    await deploy(api, "chat", balancer={"routes": [route]})
    await deploy(api, "batch", scaling={"minReplicas": 0})
    labels = {
        names.DEPLOYMENT_LABEL: "batch",
        names.COMPONENT_LABEL: Component.BALANCER.value,
    }
    await api.put("pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "labels": labels},
        "status": {"podIP": "127.0.0.1", "phase": "Running"},
    })  # fmt: skip
    await api.put("leases", {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "batch-balancer"}, "spec": {"holderIdentity": "theirs_1"},
    })  # fmt: skip
    async with living(tmp_path / "run", "chat") as picker:
        await eventually(lambda: "batch" in picker.members)

        async def is_woken() -> bool:
            picker.members["batch"].on_wait()
            await asyncio.sleep(0.1)
            return bool(woken)

        await eventually(is_woken)
        assert set(woken) == {"batch"}
        # Whoever leads is asked for nothing by us: another balancer scales it.
        assert api.objects["leases"]["batch-balancer"]["spec"]["holderIdentity"] == "theirs_1"
        async with httpx2.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{port}/load"
            assert (await http.get(url, params={"deployment": "batch"})).status_code == 200
    server.should_exit = True
    await serving
