"""Runs the picker's servers until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import httpx2
import uvicorn
from starlette.applications import Starlette

from fastgen_balancer.api_keys import ApiKeyFile
from fastgen_balancer.call_server import CallServer
from fastgen_balancer.drain import Drain
from fastgen_balancer.endpoints import Endpoint, format_address
from fastgen_balancer.envoy_admin import EnvoyAdmin, admin_port_of
from fastgen_balancer.peers import Peer, Peers
from fastgen_balancer.picker import Picker
from fastgen_balancer.roster import static_roster
from fastgen_balancer.settings import Settings
from fastgen_balancer.web import metrics_app, peers_app, web_app

SWEEP_SECONDS: Final = 1.0
COLLECT_AFTER_OBJECTS: Final = 20_000
"""Created and not yet gone since the last collection; Python's own is 700."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    balancer: str
    namespace: str
    picker_port: int
    http_host: str
    http_port: int
    metrics_port: int | None
    peers_port: int | None
    """Where other balancer pods ask; None: there are none."""
    settle_seconds: float
    settings: Settings
    """Outside Kubernetes; the longest wait counts inside as well."""
    static: Mapping[str, tuple[Endpoint, ...]]
    """Replicas by what they serve; of the one name "" when there is but one deployment."""
    prometheus_url: str | None
    static_peers: tuple[Peer, ...] = ()
    """Other balancers of the static endpoints."""
    api_keys: Path | None = None
    """The mounted Secret with the keys that Envoy asks for."""
    endpoint_picker_port: int | None = None
    endpoint_picker_tls: Path | None = None


async def serve(options: Options) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Raises OSError when a port is taken or `fastgen-balancer bootstrap` has not run.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    picker = Picker(options.directory, options.namespace)
    admin = EnvoyAdmin(f"http://127.0.0.1:{admin_port_of(options.directory)}")
    drain = Drain(admin, lambda: options.settle_seconds, lambda: picker.drain_limit_seconds)
    call_server = await _serve_envoy(picker, options.picker_port)
    gateway_server = await _serve_gateways(picker, options, drain)
    webs = _web_servers(picker, admin, drain, options)
    tasks = [asyncio.create_task(web.serve(), name="http") for web in webs]
    tasks += _start_chores(picker, admin, drain, options)
    if options.static:
        tasks += _serve_static(picker, options)
    else:
        tasks.append(asyncio.create_task(_live_in_cluster(picker, options), name="cluster"))
    _spare_collections()
    try:
        log.info("picker serves", extra={"port": options.picker_port, "http": options.http_port})
        await _first(stopping, tasks)
        await drain.run(is_last=True)
        if gateway_server is not None:
            # Of their streams Envoy, and so the drain, knows nothing.
            await gateway_server.stop(picker.drain_seconds)
    finally:
        for web in webs:
            web.should_exit = True
        await asyncio.wait(tasks[: len(webs)], timeout=6)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await picker.close()
        if gateway_server is not None:
            await gateway_server.stop(0)
        await call_server.stop()
        await admin.close()


def _web_servers(
    picker: Picker, admin: EnvoyAdmin, drain: Drain, options: Options
) -> list["_WebServer"]:
    """One for each port that is asked for."""
    app = web_app(picker.registries, admin, drain, lambda: picker.has_synced)
    webs = [_web_server(app, options.http_host, options.http_port)]
    if options.metrics_port is not None:
        alone = metrics_app(picker.registries)
        webs.append(_web_server(alone, options.http_host, options.metrics_port))
    if options.peers_port is not None:
        app = peers_app(picker.load, picker.wake, picker.share)
        webs.append(_web_server(app, options.http_host, options.peers_port))
    return webs


def _start_chores(
    picker: Picker, admin: EnvoyAdmin, drain: Drain, options: Options
) -> list[asyncio.Task[None]]:
    """What every balancer does besides answering."""
    tasks = [
        asyncio.create_task(_sweep(picker), name="sweep"),
        asyncio.create_task(_recover_envoy(admin, drain), name="recover"),
        asyncio.create_task(drain.undo_abandoned(), name="recover"),
    ]
    if options.api_keys is not None:
        file = ApiKeyFile(options.api_keys, options.directory)
        tasks.append(asyncio.create_task(file.follow(), name="api keys"))
    return tasks


def _serve_static(picker: Picker, options: Options) -> list[asyncio.Task[None]]:
    """Takes in the replicas that were given; the tasks keep other balancers in step."""
    picker.serve(static_roster(tuple(options.static), options.settings))
    for entry, endpoints in zip(picker.roster.entries, options.static.values(), strict=True):
        picker.members[entry.deployment].set_endpoints(endpoints)
    if not options.static_peers:
        return []
    return [asyncio.create_task(_share_with(picker, options.static_peers), name="peers")]


async def _live_in_cluster(picker: Picker, options: Options) -> None:
    # Only here: outside Kubernetes its client is not needed.
    from fastgen_balancer.residence import live_in_cluster

    await live_in_cluster(
        picker,
        options.directory,
        options.balancer,
        options.namespace,
        options.prometheus_url,
        options.settings.max_wait_seconds,
    )


def _spare_collections() -> None:
    """Leaves out what stays for ever, and looks for cycles more seldom: requests leave few.

    A collection of everything, some ten milliseconds, would fall into some request's first token.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 20)


async def _share_with(picker: Picker, peers: tuple[Peer, ...]) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        await picker.share.run(Peers(http, "", known=peers))


async def _serve_envoy(picker: Picker, port: int) -> CallServer:
    server = CallServer(picker.methods())
    try:
        await server.start(port)
    except OSError as error:
        raise OSError(f"port {port} of the loopback cannot be used; see --picker-port") from error
    return server


async def _serve_gateways(picker: Picker, options: Options, drain: Drain) -> grpc.aio.Server | None:
    if options.endpoint_picker_port is None:
        return None
    # Only here: most balancers serve no gateway.
    from fastgen_balancer.endpoint_picker_server import serve_endpoint_picker

    return await serve_endpoint_picker(
        picker.endpoint_picker(),
        lambda: picker.has_synced and not drain.has_begun,
        format_address(options.http_host, options.endpoint_picker_port),
        options.endpoint_picker_tls,
    )


async def _first(stopping: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Waits for the signal; a task that ends before it takes the process down with its error."""
    signal_ = asyncio.create_task(stopping.wait())
    lasting = {task for task in tasks if task.get_name() != "recover"}
    done, _ = await asyncio.wait({signal_, *lasting}, return_when=asyncio.FIRST_COMPLETED)
    signal_.cancel()
    for task in done - {signal_}:
        task.result()


async def _sweep(picker: Picker) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        if lost := picker.sweep():
            log.warning("requests lost from the books", extra={"requests": lost})


async def _recover_envoy(admin: EnvoyAdmin, drain: Drain) -> None:
    """Starts Envoy anew that an earlier picker of this pod has drained.

    Its listeners do not open again, and it tells each client that it has to go elsewhere.
    """
    while not await admin.answers():  # noqa: ASYNC110 - nothing tells us but asking
        await asyncio.sleep(1.0)
    if not await admin.is_draining():
        return
    log.warning("Envoy has drained and starts anew")
    await drain.restart_envoy()


def _web_server(app: Starlette, host: str, port: int) -> "_WebServer":
    return _WebServer(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
        )
    )


class _WebServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to us: uvicorn would stop before the drain."""
        yield
