"""Leases over HTTP as an API server keeps them: versions, conflicts, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn import Config, Server


class LeaseServer:
    """Keeps objects by name; a replacement must carry the version that is there."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def collection(self, request: Request) -> JSONResponse:
        body = await request.json()
        name = body["metadata"]["name"]
        if name in self.leases:
            return _refusal(409, "AlreadyExists")
        return self._keep(name, body, 201)

    async def single(self, request: Request) -> JSONResponse:
        name = request.path_params["name"]
        if name not in self.leases:
            return _refusal(404, "NotFound")
        if request.method == "GET":
            return JSONResponse(self.leases[name])
        body = await request.json()
        known = self.leases[name]["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != known:
            return _refusal(409, "Conflict")
        return self._keep(name, body, 200)

    def _keep(self, name: str, body: dict[str, Any], status: int) -> JSONResponse:
        self.writes += 1
        body["metadata"]["resourceVersion"] = str(self.writes)
        self.leases[name] = body
        return JSONResponse(body, status)


def _refusal(code: int, reason: str) -> JSONResponse:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return JSONResponse(status | {"code": code, "reason": reason, "message": reason}, code)


@asynccontextmanager
async def lease_server() -> AsyncIterator[tuple[LeaseServer, AsyncClient]]:
    """The server, on loopback, and a client for it."""
    leases = LeaseServer()
    path = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    app = Starlette(
        routes=[
            Route(path, leases.collection, methods=["POST"]),
            Route(path + "/{name}", leases.single, methods=["GET", "PUT"]),
        ]
    )
    server = Server(Config(app, port=0, log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    cluster = Cluster(server=f"http://127.0.0.1:{port}")
    config = KubeConfig.from_one(cluster=cluster, user=User(token="any"))
    client = AsyncClient(config, trust_env=False)
    try:
        yield leases, client
    finally:
        await client.close()
        server.should_exit = True
        await task
