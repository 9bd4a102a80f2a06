"""The server of the endpoint-picker protocol, with its health and its certificate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastgen_balancer.endpoint_picker import EndpointPicker
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.envoy_security import CERTIFICATE_FILE, KEY_FILE

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
WATCH_SECONDS: Final = 0.5
MAX_MESSAGE_BYTES: Final = 2 * MAX_BODY_BYTES
"""A buffered body comes in one message; above that the library ends the stream."""
MAX_STREAMS: Final = 1000
"""Of one connection, as at our own listener; further ones wait at the gateway."""
MAX_RPCS: Final = 8192
"""Of all connections: each request has one until its answer ends. Others get RESOURCE_EXHAUSTED."""
SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1 with the services that the protocol names, and the server as a whole."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def Check(  # noqa: N802
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_SECONDS)

    def _status(self, name: str) -> int:
        if name == LIVENESS:
            return SERVING
        if name in ("", READINESS, PROCESSOR):
            return SERVING if self._is_ready() else NOT_SERVING
        return SERVICE_UNKNOWN


async def serve_endpoint_picker(
    picker: EndpointPicker, is_ready: Callable[[], bool], address: str, tls: Path | None
) -> grpc.aio.Server:
    """Serves at `host:port`, with the certificate in the folder `tls` where one is given.

    Raises OSError when the port is taken or the certificate cannot be read.
    """
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=MAX_RPCS,
    )
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(picker, server)
    health_pb2_grpc.add_HealthServicer_to_server(Health(is_ready), server)
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, _credentials(tls))
    except RuntimeError as error:
        raise OSError(f"{address} cannot be used; see --endpoint-picker-port") from error
    await server.start()
    return server


def _credentials(folder: Path) -> grpc.ServerCredentials:
    """Of each handshake the certificate that the folder has then."""
    known = _read(folder)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal known
        try:
            found = _read(folder)
        except OSError:
            return None
        if found == known:
            return None
        known = found
        return grpc.ssl_server_certificate_configuration([known])

    first = grpc.ssl_server_certificate_configuration([known])
    # None, which the types do not know, keeps what is served.
    return grpc.dynamic_ssl_server_credentials(first, newer)  # type: ignore[arg-type]


def _read(folder: Path) -> tuple[bytes, bytes]:
    """Key and certificate, of one version of a mounted Secret; raises OSError."""
    root = folder.resolve(strict=True)
    if (root / "..data").exists():
        root = (root / "..data").resolve(strict=True)
    return (root / KEY_FILE).read_bytes(), (root / CERTIFICATE_FILE).read_bytes()
