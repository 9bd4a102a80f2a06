"""What counts as life of the API server, and what a reconciler remembers; over real HTTP."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster as KubernetesServer
from lightkube.config.models import User

from fastgen_api import names
from fastgen_operator.applying import SAME_NOTICE_AFTER, Memory
from fastgen_operator.cluster import Cluster
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.owner import Owner
from fastgen_operator.status import Notice

OWNER = Owner("chat", "team", "uid-1")
CHILD = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "chat", "namespace": "team", "uid": "uid-2"},
}
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


@contextlib.asynccontextmanager
async def api_server(status: int) -> AsyncIterator[str]:
    """One that answers everything alike."""

    async def refuse(_: web.Request) -> web.Response:
        text = {"kind": "Status", "apiVersion": "v1", "code": status, "message": "no"}
        return web.json_response(text, status=status)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def client_of(url: str) -> AsyncClient:
    server = KubernetesServer(server=url)
    return AsyncClient(KubeConfig.from_one(cluster=server, user=User(token="any")))


REQUESTS: dict[str, Callable[[Cluster], Awaitable[object]]] = {
    "get": lambda cluster: cluster.get(names.KIND, "team", "chat"),
    "list": lambda cluster: cluster.list(names.KIND, "team"),
    "apply": lambda cluster: cluster.apply(CHILD),
    "delete": lambda cluster: cluster.delete(CHILD),
    "tell": lambda cluster: cluster.tell(OWNER, Notice("Normal", "Ready", ""), NOW, "operator"),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("status", [404, 403, 500])
async def test_every_answer_is_a_sign_of_life(
    request_: Callable[[Cluster], Awaitable[object]], status: int
) -> None:
    """A missing CRD is a 404: a restart would not bring it."""
    answers = 0

    def count() -> None:
        nonlocal answers
        answers += 1

    async with api_server(status) as url:
        cluster = Cluster(client_of(url), count)
        with contextlib.suppress(ClusterError):
            await request_(cluster)
        await cluster.close()
    assert answers == 1


async def test_no_answer_is_none() -> None:
    async with api_server(200) as url:
        pass
    answers: list[None] = []
    cluster = Cluster(client_of(url), lambda: answers.append(None))
    with pytest.raises(ClusterError) as failure:
        await cluster.list(names.KIND, "team")
    await cluster.close()
    assert failure.value.code == 0
    assert not answers


def named(name: str) -> dict[str, Any]:
    return CHILD | {"metadata": {"name": name, "namespace": "team", "uid": "uid-2"}}


NAMED: dict[str, Callable[[Cluster, str], Awaitable[object]]] = {
    "get": lambda cluster, name: cluster.get("PersistentVolumeClaim", "team", name),
    "apply": lambda cluster, name: cluster.apply(named(name)),
    "check": lambda cluster, name: cluster.check(named(name)),
    "delete": lambda cluster, name: cluster.delete(named(name)),
}
NO_NAMES = ("../../b/persistentvolumeclaims/c", "../pods?watch=true", "..", "a/status", "a%2f", "",
            "a b", "A", "a\n", "a" * 254)  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
@pytest.mark.parametrize("request_", NAMED.values(), ids=NAMED)
async def test_no_name_leads_a_request_elsewhere(
    request_: Callable[[Cluster, str], Awaitable[object]], name: str
) -> None:
    answers: list[None] = []
    async with api_server(404) as url:
        cluster = Cluster(client_of(url), lambda: answers.append(None))
        with pytest.raises(ClusterError, match="no object can have this name") as failure:
            await request_(cluster, name)
        await cluster.close()
    assert failure.value.is_rejection
    assert not answers, "nothing was asked"


@pytest.mark.parametrize(
    ("code", "message", "is_rejection"),
    [
        (500, "failed to create typed patch object (a/b; apps/v1): field not declared", True),
        (500, "failed to convert new object (a/b; apps/v1): unable to parse quantity's suffix",
         True),
        (500, "unable to parse numeric part of quantity", True),
        (500, "etcdserver: request timed out", False),
        (422, "Invalid value", True),
        (409, "the object has been modified", False),
    ],
)  # fmt: skip
def test_what_is_refused_again_is_a_rejection(code: int, message: str, is_rejection: bool) -> None:
    assert ClusterError(code, message).is_rejection is is_rejection


def test_an_event_is_told_again_after_a_while_and_forgotten_by_then() -> None:
    memory, now = Memory(), NOW
    for number in range(100):
        notice = Notice("Warning", f"Crashed{number}", "it did")
        assert memory.may_tell(notice, 1, now)
        assert not memory.may_tell(notice, 1, now)
        now += timedelta(minutes=1)
    assert len(memory.told) <= SAME_NOTICE_AFTER / timedelta(minutes=1)
    assert memory.may_tell(Notice("Warning", "Crashed0", "it did"), 1, now)
