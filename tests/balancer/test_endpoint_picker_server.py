"""The endpoint picker's server: its health, its certificate, its end."""

import asyncio
from pathlib import Path

import grpc
import httpx2
import pytest
from certificates import Certificate, make_certificate
from gateway import complete, running
from gateway_config import Gateway
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mounted_secret import MountedSecret
from small_replica import Replica, serving

from fastgen_api.names import Metric
from fastgen_balancer.endpoint_picker_server import LIVENESS, PROCESSOR, READINESS

from .conftest import Balance, picking


def files_of(made: Certificate) -> dict[str, bytes]:
    return {"tls.crt": made.certificate.read_bytes(), "tls.key": made.key.read_bytes()}


async def test_health_and_tls(balance: Balance, http: httpx2.AsyncClient, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    (tmp_path / "second").mkdir()
    second = make_certificate(tmp_path / "second")
    trusted, next_trusted = made.authority.read_bytes(), second.authority.read_bytes()
    secret = MountedSecret(tmp_path / "secret", files_of(made))
    arguments = ("--endpoint-picker-tls", str(secret.folder))
    async with (
        serving(Replica("one")) as a,
        picking(balance, a, arguments=arguments) as (balancer, port),
        running(Gateway(port, authority=made.authority), tmp_path) as gateway,
    ):
        assert (await complete(http, gateway)).status_code == 200
        assert await health(port, trusted, LIVENESS) == "SERVING"
        assert await health(port, trusted, READINESS) == "SERVING"
        assert await health(port, trusted, PROCESSOR) == "SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await health(port, trusted, "nonsense")
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND

        secret.replace(files_of(second))

        async def is_renewed() -> bool:
            try:
                return await health(port, next_trusted, READINESS) == "SERVING"
            except grpc.aio.AioRpcError:
                return False

        await balancer.eventually(is_renewed, seconds=10)

        stream = asyncio.create_task(complete(http, gateway, "gap=0.1", 40))
        await balancer.eventually(lambda: balancer.metric(Metric.IN_FLIGHT_REQUESTS))
        assert balancer.picker is not None
        await http.post(f"http://127.0.0.1:{balancer.http_port}/drain")
        assert await health(port, next_trusted, LIVENESS) == "SERVING"
        assert await health(port, next_trusted, READINESS) == "NOT_SERVING"
        balancer.picker.terminate()
        answer = await stream
        assert answer.text.endswith("[DONE]\n\n"), "the picker waits for a gateway's streams"
        assert await asyncio.wait_for(balancer.picker.wait(), 15) == 0


async def health(port: int, authority: bytes, service: str) -> str:
    credentials = grpc.ssl_channel_credentials(authority)
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name
