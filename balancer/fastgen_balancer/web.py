"""The picker's own HTTP: metrics, probes, the drain, and what other balancer pods ask."""

from collections.abc import Callable, Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fastgen_balancer.drain import Drain
from fastgen_balancer.envoy_admin import EnvoyAdmin
from fastgen_balancer.exposition import expose
from fastgen_balancer.peers import DEPLOYMENT, LOAD_PATH, WAKE_PATH, BalancerLoad


def web_app(
    registries: Callable[[], Sequence[CollectorRegistry]],
    admin: EnvoyAdmin,
    drain: Drain,
    has_synced: Callable[[], bool],
) -> Starlette:
    """`/metrics`, `/healthz` (the process runs), `/readyz` (it may get traffic) and `/drain`."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = None
        if drain.has_begun:
            reason = "draining"
        elif not has_synced():
            reason = "the endpoints are not known yet"
        elif not await admin.is_ready():
            reason = "Envoy is not ready"
        return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)

    async def drain_now(_: Request) -> Response:
        return JSONResponse({"drained": await drain.run()})

    return _app(
        [
            _metrics(registries),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/drain", drain_now, methods=["GET", "POST"]),
        ]
    )


def metrics_app(registries: Callable[[], Sequence[CollectorRegistry]]) -> Starlette:
    """`/metrics` and nothing else."""
    return _app([_metrics(registries)])


def peers_app(load: Callable[[str], BalancerLoad], wake: Callable[[str], None]) -> Starlette:
    """For other balancer pods: `/load` and, for the leader, `/wake`, each of a deployment.

    Neither can do harm: a leader that is woken looks again and decides as it would have anyway.
    """

    async def tell(request: Request) -> Response:
        found = load(request.query_params.get(DEPLOYMENT, ""))
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def be_woken(request: Request) -> Response:
        wake(request.query_params.get(DEPLOYMENT, ""))
        return Response(status_code=202)

    return _app([Route(LOAD_PATH, tell), Route(WAKE_PATH, be_woken, methods=["POST"])])


def _metrics(registries: Callable[[], Sequence[CollectorRegistry]]) -> Route:
    async def metrics(_: Request) -> Response:
        return Response(expose(registries()), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics)


def _app(routes: Sequence[Route]) -> Starlette:
    app = Starlette(routes=routes)
    # A redirect would repeat whatever host the request named.
    app.router.redirect_slashes = False
    return app
