"""The picker follows a real API server: endpoints that come, leave and outlive its absence.

The pods only exist on paper; the replicas behind their EndpointSlices are processes' parts here.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from autoscaler_process import NO_WAY_OUT
from balancer_process import Balancer, balancing, complete, ready
from commands import Commands
from small_replica import Replica, serving

from fastgen_api import names
from fastgen_api.names import Header, Metric

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = "chat"


@dataclass
class Scene:
    """One FastGenDeployment, paused, so that no operator makes children of it."""

    cluster: Commands
    namespace: str

    async def kubectl(self, *words: str, stdin: str = "") -> str:
        return await asyncio.to_thread(
            self.cluster.kubectl, "-n", self.namespace, *words, stdin=stdin
        )

    async def apply(self, *manifests: dict[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    async def deploy(self, max_queued: int) -> None:
        await self.apply(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": NAME, "annotations": {names.PAUSED_ANNOTATION: "true"}},
                "spec": {
                    "model": {"source": "file:///models/none.gguf"},
                    "scaling": {"mode": "Disabled"},
                    "balancer": {"replicas": 1, "maxQueuedRequests": max_queued},
                },
            }
        )

    async def join(self, name: str, address: str) -> None:
        """A pod, held by a finalizer, and its EndpointSlice."""
        host, http, grpc = address.split(":")
        labels = {
            names.DEPLOYMENT_LABEL: NAME,
            names.COMPONENT_LABEL: names.Component.REPLICA.value,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "finalizers": ["fastgen.dev/test"]},
            "spec": {
                "nodeSelector": {"fastgen.dev/no-such": "node"},
                "containers": [{"name": "none", "image": "none.invalid/none"}],
            },
        }
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/service-name": names.replica_name(NAME)},
            },
            "addressType": "IPv4",
            "ports": [
                {"name": "http", "port": int(http), "protocol": "TCP"},
                {"name": "grpc", "port": int(grpc), "protocol": "TCP"},
            ],
            "endpoints": [
                {
                    "addresses": [host],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "targetRef": {"kind": "Pod", "name": name, "namespace": self.namespace},
                }
            ],
        }
        await self.apply(pod, slice_)

    async def release(self, *pods: str) -> None:
        for pod in pods:
            patch = '{"metadata": {"finalizers": null}}'
            await self.kubectl("patch", "pod", pod, "--type=merge", "-p", patch)


@pytest.fixture
async def scene(cluster: Commands, namespace: str) -> AsyncIterator[Scene]:
    scene = Scene(cluster, namespace)
    await scene.deploy(max_queued=10)
    yield scene
    found = await scene.kubectl("get", "pods", "-o", "name")
    await scene.release(*(name.removeprefix("pod/") for name in found.split()))
    await scene.kubectl("delete", "pods,endpointslices,fgd", "--all", "--wait=false")


@dataclass
class Door:
    """A way to the API server that can be shut."""

    port: int
    host: str
    server: asyncio.Server
    links: set[asyncio.Task[None]]

    async def shut(self) -> None:
        self.server.close()
        for link in self.links:
            link.cancel()
        await asyncio.gather(*self.links, return_exceptions=True)

    async def open(self) -> None:
        self.server, self.links = await _listen(self.host, self.port)


async def _listen(url: str, port: int) -> tuple[asyncio.Server, set[asyncio.Task[None]]]:
    target = urlsplit(url)
    links: set[asyncio.Task[None]] = set()

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        links.add(task)
        there = await asyncio.open_connection(target.hostname, target.port)

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()

        try:
            await asyncio.wait(
                {
                    asyncio.ensure_future(carry(reader, there[1])),
                    asyncio.ensure_future(carry(there[0], writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer.close()
            there[1].close()
            links.discard(task)

    return await asyncio.start_server(link, "127.0.0.1", port), links


@pytest.fixture
async def door(cluster: Commands, tmp_path: Path) -> AsyncIterator[tuple[Door, Path]]:
    """The door, and the kubeconfig that leads through it."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    url = config["clusters"][0]["cluster"]["server"]
    server, links = await _listen(url, 0)
    port = server.sockets[0].getsockname()[1]
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    door = Door(port, url, server, links)
    yield door, kubeconfig
    await door.shut()


def own_address(cluster: Commands) -> str:
    """This machine's address as the cluster sees it: EndpointSlices take no loopback."""
    url = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(url).hostname, 9))
        return str(probe.getsockname()[0])


@contextlib.asynccontextmanager
async def picking(
    scene: Scene, directory: Path, kubeconfig: Path
) -> AsyncIterator[tuple[Balancer, httpx2.AsyncClient]]:
    arguments = ("--balancer", NAME, "--namespace", scene.namespace)
    environment = {"KUBECONFIG": str(kubeconfig)} | NO_WAY_OUT
    async with (
        balancing(directory, arguments=arguments, environment=environment) as balancer,
        httpx2.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        yield balancer, http


def served_by(
    http: httpx2.AsyncClient, balancer: Balancer, name: str | None
) -> Callable[[], object]:
    """Whether the next answer comes from this replica; None: whether there is none."""

    async def check() -> bool:
        response = await complete(http, balancer, "", 1)
        return response.headers.get(Header.REPLICA) == name

    return check


async def test_endpoints_come_and_leave(
    scene: Scene, door: tuple[Door, Path], tmp_path: Path
) -> None:
    host = own_address(scene.cluster)
    one, two = Replica("one"), Replica("two")
    async with (
        serving(one, host) as a,
        serving(two, host) as b,
        picking(scene, tmp_path, door[1]) as (balancer, http),
    ):
        refused = await complete(http, balancer, "", 1)
        assert refused.status_code == 503
        await scene.join("one", a)
        await balancer.eventually(served_by(http, balancer, "one"))
        await scene.join("two", b)
        await balancer.eventually(served_by(http, balancer, "two"))

        # Its deletion begins: from a second later on nothing new goes there, its stream ends well.
        two.owed = 100_000
        await asyncio.sleep(0.6)
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 60))
        await balancer.eventually(lambda: one.running == 1)
        await scene.kubectl("delete", "pod", "one", "--wait=false")
        await asyncio.sleep(1)
        before = len(one.seen)
        for _ in range(10):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "two"
        assert len(one.seen) == before
        await scene.release("one")
        await scene.kubectl("delete", "endpointslice", "one")
        assert (await stream).text.endswith("data: [DONE]\n\n")

        patch = json.dumps({"spec": {"balancer": {"maxQueuedRequests": 0}}})
        two.extra_load = two.capacity
        await scene.kubectl("patch", "fgd", NAME, "--type=merge", "-p", patch)

        async def refuses() -> bool:
            with contextlib.suppress(httpx2.ReadTimeout):
                response = await http.get(f"{balancer.url}/v1/models")
                assert response.status_code == 200
                body = {"prompt": "", "max_tokens": 1}
                url = f"{balancer.url}/v1/completions"
                return (await http.post(url, json=body, timeout=1)).status_code == 429
            return False

        await balancer.eventually(refuses)
        labels = {"deployment": NAME, "deployment_namespace": scene.namespace}
        assert await balancer.metric(Metric.REQUESTS, outcome="refused", **labels) >= 1
        assert await balancer.metric(Metric.LEADER, **labels) in (0, 1)


async def test_the_api_server_may_be_away(
    scene: Scene, door: tuple[Door, Path], tmp_path: Path
) -> None:
    host = own_address(scene.cluster)
    one, two = Replica("one"), Replica("two")
    async with (
        serving(one, host) as a,
        serving(two, host) as b,
        picking(scene, tmp_path, door[1]) as (balancer, http),
    ):
        await scene.join("one", a)
        await balancer.eventually(served_by(http, balancer, "one"))
        await door[0].shut()
        await asyncio.sleep(1)
        for _ in range(5):
            assert (await complete(http, balancer, "", 1)).headers[Header.REPLICA] == "one"

        # A picker that starts meanwhile knows what the last one knew.
        assert balancer.picker is not None
        balancer.picker.kill()
        await balancer.picker.wait()
        await balancer.start_picker()

        async def picks() -> bool:
            with contextlib.suppress(httpx2.HTTPError):
                await complete(http, balancer, "", 1)
                return await balancer.metric(Metric.PICKS, result="picked") > 0
            return False

        await balancer.eventually(picks, seconds=60)
        assert not await ready(balancer), "it does not ask for traffic before it knows for sure"

        await scene.join("two", b)
        await door[0].open()
        await balancer.eventually(served_by(http, balancer, "two"), seconds=30)
        assert await ready(balancer)
