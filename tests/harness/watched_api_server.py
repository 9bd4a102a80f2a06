"""An HTTP server that answers as the API server does on its worse days, and a watch of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from lightkube import KubeConfig
from lightkube.config.models import Cluster as KubernetesServer
from lightkube.config.models import User

from fastgen_api import names
from fastgen_operator.cluster import Cluster
from fastgen_operator.connection import Connection, connect
from fastgen_operator.queue import Key
from fastgen_operator.store import Store
from fastgen_operator.watch import Ending, Watch

KEY = ("team", "chat")
Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


def item(version: int, name: str = "chat-slo") -> dict[str, Any]:
    """A ConfigMap of the deployment `chat`, of that resource version."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": "team", "resourceVersion": str(version),
            "labels": {names.DEPLOYMENT_LABEL: "chat"},
        },
    }  # fmt: skip


def refusal(code: int, message: str = "no", **headers: str) -> web.Response:
    """A Kubernetes status in the place of an answer."""
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return web.json_response(status, status=code, headers=headers)


@dataclass
class ApiServer:
    """Answers each list and each watch by the next function of its script, the last for ever."""

    lists: list[Serve] = field(default_factory=list)
    watches: list[Serve] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        script = self.watches if request.query.get("watch") else self.lists
        return await (script.pop(0) if len(script) > 1 else script[0])(request)

    def watched_from(self) -> list[str]:
        return [each["resourceVersion"] for each in self.asked if each.get("watch")]

    def listed(self) -> int:
        return sum("watch" not in each for each in self.asked)


def holds(version: int, *items: dict[str, Any]) -> Serve:
    """A list of these objects."""

    async def serve(_: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    return serve


def refuses(code: int) -> Serve:
    """Any refusal."""

    async def serve(_: web.Request) -> web.StreamResponse:
        return refusal(code)

    return serve


def tells(*events: tuple[str, dict[str, Any]], then: float = 60.0, cut: bool = False) -> Serve:
    """A stream of events that ends after some seconds, or breaks."""

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, found in events:
            line = json.dumps({"type": kind, "object": found}, ensure_ascii=False).encode() + b"\n"
            # In two pieces, as networks do.
            await response.write(line[:30])
            await response.write(line[30:])
        await asyncio.sleep(then)
        if cut and request.transport:
            request.transport.abort()
        return response

    return serve


@dataclass
class Followed:
    """A running watch of ConfigMaps and what came of it."""

    server: ApiServer
    store: Store
    watch: Watch
    asked: list[Key]
    ends: list[Ending]
    served: list[bool]

    def known(self) -> list[str]:
        children = self.store.observe(KEY).children
        return [f"{name}@{each['metadata']['resourceVersion']}"
                for (_, name), each in children.items()]  # fmt: skip


@contextlib.asynccontextmanager
async def connected(server: ApiServer, silence: float) -> AsyncIterator[Connection]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = KubeConfig.from_one(cluster=KubernetesServer(server=url), user=User(token="any")).get()
    connection = connect(lambda *_: None, silence, config)
    yield connection
    await connection.close()
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following(
    server: ApiServer, kind: str = "ConfigMap", silence: float = 5.0
) -> AsyncIterator[Followed]:
    async with connected(server, silence) as connection:
        store = Store()
        shelf = store.shelf(kind, "team")
        assert shelf is not None
        asked: list[Key] = []
        ends: list[Ending] = []
        served: list[bool] = []
        watch = Watch(
            shelf,
            Cluster(connection.requests, lambda: None, store),
            connection.watches,
            ask=asked.append,
            served=lambda: served.append(shelf.is_served),
            ended=lambda _, ending: ends.append(ending),
        )
        task = asyncio.create_task(watch.run())
        yield Followed(server, store, watch, asked, ends, served)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
