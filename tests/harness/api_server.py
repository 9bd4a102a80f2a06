"""An API server on loopback that lists and watches what a test puts there, and keeps Leases."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config, Server

Object = dict[str, Any]


@dataclass
class APIServer:
    """Objects by resource and name; `broken` resources with such a label answer with an error."""

    url: str = ""
    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    broken: str = ""
    _events: list[tuple[int, str, str, Object]] = field(default_factory=list)
    _version: int = 0
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, resource: str, found: Object) -> None:
        """Creates or replaces it."""
        name = found["metadata"]["name"]
        kind = "MODIFIED" if name in self.objects.get(resource, {}) else "ADDED"
        self._keep(resource, found)
        await self._tell(resource, kind, found)

    async def remove(self, resource: str, name: str) -> None:
        found = self.objects[resource].pop(name)
        self._version += 1
        await self._tell(resource, "DELETED", found)

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads here."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "c", "user": {"token": "any"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return path

    def _keep(self, resource: str, found: Object) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects.setdefault(resource, {})[found["metadata"]["name"]] = found

    async def _tell(self, resource: str, kind: str, found: Object) -> None:
        self._events.append((self._version, resource, kind, found))
        async with self._news:
            self._news.notify_all()

    async def collection(self, request: Request) -> Response:
        resource, query = request.path_params["resource"], request.query_params
        selector = query.get("labelSelector", "")
        if self.broken and self.broken in selector:
            return JSONResponse({"kind": "Status", "code": 500, "message": "broken"}, 500)
        if request.method == "POST":
            self._keep(resource, body := await request.json())
            return JSONResponse(body, 201)
        if query.get("watch") in ("true", "1"):
            known = int(query.get("resourceVersion") or 0)
            since = sum(version <= known for version, *_ in self._events)
            return StreamingResponse(self._watch(resource, selector, since))
        items = [each for each in self.objects.get(resource, {}).values() if _has(each, selector)]
        version = {"resourceVersion": str(self._version)}
        return _answer({"kind": "List", "apiVersion": "v1", "metadata": version, "items": items})

    async def single(self, request: Request) -> Response:
        resource, name = request.path_params["resource"], request.path_params["name"]
        if name not in self.objects.get(resource, {}):
            return JSONResponse({"kind": "Status", "code": 404, "message": "none"}, 404)
        if request.method == "PUT":
            self._keep(resource, await request.json())
        return _answer(self.objects[resource][name])

    async def _watch(self, resource: str, selector: str, since: int) -> AsyncIterator[bytes]:
        while True:
            async with self._news:
                while len(self._events) <= since:
                    await self._news.wait()
            for _, each, kind, found in self._events[since:]:
                since += 1
                if each == resource and _has(found, selector):
                    yield _bytes({"type": kind, "object": found}) + b"\n"


def _has(found: Object, selector: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    pairs = (pair.partition("=") for pair in selector.split(",") if pair)
    return all(labels.get(key) == value for key, _, value in pairs)


def _bytes(content: Object) -> bytes:
    """As JSON; what lies in `raw` as it is, however deep."""
    raw = content.get("object", content)
    text = json.dumps(content)
    for each in [raw, *raw.get("items", [])]:
        if deep := each.get("deep"):
            text = text.replace(f'"deep": {json.dumps(deep)}', f'"deep": {deep}')
    return text.encode()


def _answer(content: Object) -> Response:
    return Response(_bytes(content), media_type="application/json")


@asynccontextmanager
async def api_server() -> AsyncIterator[APIServer]:
    """The server, until the block ends."""
    api = APIServer()
    many = "/namespaces/{namespace}/{resource}"
    roots = ("/api/v1", "/apis/{group}/{version}")
    app = Starlette(
        routes=[
            route
            for root in roots
            for route in (
                Route(root + many, api.collection, methods=["GET", "POST"]),
                Route(root + many + "/{name}", api.single, methods=["GET", "PUT"]),
            )
        ]
    )
    server = Server(
        Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    api.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.should_exit = True
        await task
