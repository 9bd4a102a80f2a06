"""The HTTP port, and the server behind it."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from fastgen_api.names import Header
from fastgen_runtime.front.front import Front
from fastgen_runtime.protocols.http_app import make_app
from fastgen_runtime.protocols.http_completion import error_body, json_response
from fastgen_runtime.protocols.http_connection import Connection, ConnectionState

_KEEP_ALIVE_SECONDS: Final = 75


class HttpServer:
    """The HTTP port, and a port for metrics alone where one is asked for."""

    def __init__(self, front: Front, replica: str) -> None:
        self._metrics_port: int | None = None
        app = make_app(front)
        config = uvicorn.Config(
            _MetricsAlone(app, lambda: self._metrics_port),
            http=Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            headers=[(Header.REPLICA, replica)],
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config, ConnectionState(front.max_body_bytes))
        self._sockets: list[socket.socket] = []
        self._ended = asyncio.Event()
        self._ended.set()

    def bind(self, host: str, port: int) -> int:
        """Takes the port, and returns it; raises OSError when it cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.create_server((host, port), family=family, backlog=2048)
        self._sockets.append(taken)
        return int(taken.getsockname()[1])

    def bind_metrics(self, host: str, port: int) -> int:
        """Takes a port that serves nothing but /metrics; raises OSError when it cannot be had."""
        self._metrics_port = self.bind(host, port)
        return self._metrics_port

    async def serve(self) -> None:
        """Serves until told to stop."""
        self._ended.clear()
        try:
            await self._server.serve(sockets=self._sockets or None)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Lets responses under way end, for as long as the graceful shutdown takes."""
        self._server.should_exit = True
        await self._ended.wait()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: ConnectionState) -> None:
        super().__init__(config)
        self.server_state = self._state = state

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s."""
        if counter % 10 == 0:
            self._state.expire(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the replica, which drains first."""
        yield


class _MetricsAlone:
    """Hides everything but /metrics from who comes by the metrics port."""

    def __init__(self, app: ASGIApp, metrics_port: Callable[[], int | None]) -> None:
        self._app = app
        self._metrics_port = metrics_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = (scope.get("server") or (None, None))[1]
        if port is None or port != self._metrics_port() or scope.get("path") == "/metrics":
            await self._app(scope, receive, send)
            return
        body = error_body("this port serves /metrics alone", "invalid_request_error", None, None)
        await json_response(HTTPStatus.NOT_FOUND, body)(scope, receive, send)
