"""A proxy between a client and the API server that does to it what networks and servers do."""

import asyncio
import base64
import json
import random
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web
from aiohttp.typedefs import Handler
from certificates import make_certificate

HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}
)


AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What the client adds where it is missing."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a fault may look at."""

    method: str
    path: str
    is_watch: bool

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a request instead of being answered."""

    code: int = 0
    """The status of the answer; 0: the connection breaks."""
    message: str = "injected by a test"
    retry_after: int | None = None
    in_stream: bool = False
    """Told as an ERROR event of a watch."""


Decide = Callable[[Request], Fault | None]


def nothing(_: Request) -> Fault | None:
    """All goes well."""
    return None


def some(share: float, of: Callable[[Request], bool], *faults: Fault, seed: int = 1) -> Decide:
    """That share of the requests meets one of the faults, drawn by the seed."""
    draw = random.Random(seed)

    def decide(request: Request) -> Fault | None:
        return draw.choice(faults) if of(request) and draw.random() < share else None

    return decide


def _is_write(request: Request) -> bool:
    return request.is_write


def _is_anything(_: Request) -> bool:
    return True


CONFLICT: Final = Fault(
    409, "the object has been modified; please apply your changes to the latest version"
)
BAD_DAYS: Final = {
    "429 and conflicts": some(0.3, _is_write, Fault(429, retry_after=1), CONFLICT),
    "5xx and broken connections": some(0.2, _is_anything, Fault(500), Fault(503), Fault(0)),
}


@dataclass
class ApiProxy:
    """Serves TLS with an authority of its own; `kubeconfig` leads through it."""

    kubeconfig: Path
    port: int = 0
    decide: Decide = nothing
    requests: list[Request] = field(default_factory=list)
    faults: int = 0
    _is_cut: bool = False
    _cuts: int = 0
    _connections: set[asyncio.Transport] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None

    def cut(self) -> None:
        """From now on no byte comes through, and nobody is told: as after a lost route.

        Connections that exist stay silent for ever; new ones are accepted and never answered.
        """
        self._cuts += 1
        self._is_cut = True

    def mend(self) -> None:
        """New requests come through again."""
        self._is_cut = False

    def break_connections(self) -> None:
        """Ends all connections, as a load balancer does that restarts."""
        assert self._loop
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for transport in self._connections:
            transport.abort()

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(incoming.method, incoming.path, incoming.query.get("watch") == "true")
        self.requests.append(request)
        cuts = self._cuts
        if self._is_cut:
            await self._silence()
        if fault := self.decide(request):
            self.faults += 1
            return await self._misbehave(incoming, fault)
        headers = {name: value for name, value in incoming.headers.items()
                   if name.lower() not in HOP_BY_HOP}  # fmt: skip
        body = await incoming.read()
        try:
            return await self._forward(incoming, headers, body, cuts)
        except aiohttp.ClientConnectionError:  # The API server is away.
            if incoming.transport:
                incoming.transport.abort()
            raise

    async def _forward(
        self, incoming: web.Request, headers: dict[str, str], body: bytes, cuts: int
    ) -> web.StreamResponse:
        async with incoming.app[SESSION].request(
            incoming.method, incoming.rel_url, headers=headers, data=body or None
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(incoming)
            async for chunk in answer.content.iter_any():
                if self._cuts > cuts:
                    await self._silence()
                await response.write(chunk)
            if self._cuts > cuts:
                await self._silence()
        return response

    async def _silence(self) -> None:
        await asyncio.Event().wait()

    async def _misbehave(self, incoming: web.Request, fault: Fault) -> web.StreamResponse:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.code,
                  "message": fault.message}  # fmt: skip
        if fault.in_stream:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(incoming)
            line = json.dumps({"type": "ERROR", "object": status}) + "\n"
            await response.write(line.encode())
            return response
        if fault.code == 0 and incoming.transport:
            incoming.transport.abort()
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        # As the API server names it: without a charset, which lightkube would not know.
        headers["Content-Type"] = "application/json"
        body = json.dumps(status).encode()
        return web.Response(status=fault.code or 500, headers=headers, body=body)

    @web.middleware
    async def _count_connection(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        assert transport
        self._connections.add(transport)
        try:
            return await handler(request)
        finally:
            self._connections.discard(transport)


SESSION: Final = web.AppKey("session", aiohttp.ClientSession)


@contextmanager
def proxy_to(kubeconfig: Path, folder: Path) -> Iterator[ApiProxy]:
    """A proxy to the API server of a kubeconfig, until the end."""
    config = yaml.safe_load(kubeconfig.read_text())
    (entry,) = config["clusters"]
    own = make_certificate(folder, ("IP:127.0.0.1",))
    proxy = ApiProxy(folder / "kubeconfig")
    is_up, is_over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        proxy._loop = asyncio.get_running_loop()
        async with _serving(proxy, entry["cluster"], own.certificate, own.key) as port:
            proxy.port = port
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="api proxy", daemon=True)
    thread.start()
    assert is_up.wait(timeout=20), "the proxy did not start"
    server = {
        "server": f"https://127.0.0.1:{proxy.port}",
        "certificate-authority": str(own.authority),
    }
    entry["cluster"] = server
    proxy.kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield proxy
    finally:
        assert proxy._loop
        proxy._loop.call_soon_threadsafe(is_over.set)
        thread.join(timeout=20)


@asynccontextmanager
async def _serving(
    proxy: ApiProxy, upstream: dict[str, Any], certificate: Path, key: Path
) -> AsyncIterator[int]:
    trust = ssl.create_default_context(cadata=_authority(upstream))
    app = web.Application(middlewares=[proxy._count_connection], client_max_size=8 * 1024**2)
    app.router.add_route("*", "/{any:.*}", proxy._handle)
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(
        upstream["server"], connector=connector, auto_decompress=False, skip_auto_headers=AUTOMATIC,
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:  # fmt: skip
        app[SESSION] = session
        runner = web.AppRunner(
            app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True
        )
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1]
        await runner.cleanup()


def _authority(upstream: dict[str, Any]) -> str:
    return base64.b64decode(upstream["certificate-authority-data"]).decode()


def _kept(headers: Any) -> dict[str, str]:
    dropped = HOP_BY_HOP - {"content-encoding"}
    return {name: value for name, value in headers.items() if name.lower() not in dropped}
