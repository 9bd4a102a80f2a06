"""TLS at the real Envoy: every protocol on one port, and a new certificate without a restart."""

import asyncio
import ssl
from pathlib import Path

import grpc
import httpx2
from balancer_process import Balancer, prompt_of
from certificates import Certificate, make_certificate
from mounted_secret import MountedSecret
from small_replica import Replica, serving

from fastgen_api.names import BALANCER_HEALTH_PATH
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance

BODY = {"prompt": "", "max_tokens": 1}


def certificate(folder: Path) -> Certificate:
    folder.mkdir()
    return make_certificate(folder)


def data(made: Certificate) -> dict[str, bytes]:
    return {"tls.crt": made.certificate.read_bytes(), "tls.key": made.key.read_bytes()}


def options(secret: MountedSecret) -> dict[str, tuple[str, ...]]:
    return {"bootstrap_arguments": ("--tls", str(secret.folder))}


def client_of(made: Certificate, *, http2: bool = False) -> httpx2.AsyncClient:
    context = ssl.create_default_context(cafile=str(made.authority))
    return httpx2.AsyncClient(verify=context, trust_env=False, timeout=30, http2=http2)


def url_of(balancer: Balancer) -> str:
    return f"https://localhost:{balancer.port}"


def channel_of(balancer: Balancer, made: Certificate) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(made.authority.read_bytes())
    return grpc.aio.secure_channel(f"localhost:{balancer.port}", credentials)


async def agreed(balancer: Balancer, made: Certificate, *protocols: str) -> str | None:
    """The protocol that ALPN settles on."""
    context = ssl.create_default_context(cafile=str(made.authority))
    context.set_alpn_protocols(list(protocols))
    _, writer = await asyncio.open_connection(
        "127.0.0.1", balancer.port, ssl=context, server_hostname="localhost"
    )
    try:
        found: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        return found
    finally:
        writer.close()


async def is_served(balancer: Balancer, made: Certificate) -> bool:
    async with client_of(made) as client:
        try:
            return (await client.get(f"{url_of(balancer)}{BALANCER_HEALTH_PATH}")).is_success
        except httpx2.ConnectError:
            return False


async def test_http_and_grpc_on_one_port(balance: Balance, tmp_path: Path) -> None:
    made = certificate(tmp_path / "made")
    secret = MountedSecret(tmp_path / "secret", data(made))
    one = Replica("one")
    async with serving(one) as a, balance(a, **options(secret)) as balancer:
        async with client_of(made) as client:
            answer = await client.post(f"{url_of(balancer)}/v1/completions", json=BODY)
            assert (answer.status_code, answer.http_version) == (200, "HTTP/1.1")
        async with channel_of(balancer, made) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            words = [message.text async for message in stub.Generate(prompt_of("", 2))]
        assert words == ["w0 ", "w1 "]
        assert await agreed(balancer, made, "h2", "http/1.1") == "h2"
        assert await agreed(balancer, made, "http/1.1") == "http/1.1"
        async with httpx2.AsyncClient(trust_env=False) as plain:
            try:
                answer = await plain.get(f"{balancer.url}/v1/models")
            except httpx2.HTTPError:
                return
        raise AssertionError(f"served without TLS: {answer.status_code}")


async def test_a_new_certificate_breaks_no_stream(balance: Balance, tmp_path: Path) -> None:
    first, second = certificate(tmp_path / "first"), certificate(tmp_path / "second")
    secret = MountedSecret(tmp_path / "secret", data(first))
    async with (
        serving(Replica("one")) as a,
        balance(a, **options(secret)) as balancer,
        channel_of(balancer, first) as channel,
        client_of(first) as client,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def over_grpc() -> int:
            return len([message async for message in stub.Generate(prompt_of("gap=0.1", 50))])

        async def over_http() -> int:
            body = {"prompt": "gap=0.1", "max_tokens": 50, "stream": True}
            url = f"{url_of(balancer)}/v1/completions"
            async with client.stream("POST", url, json=body) as answer:
                return len([line async for line in answer.aiter_lines() if line])

        streams = asyncio.gather(over_grpc(), over_http())
        await asyncio.sleep(0.5)
        assert not await is_served(balancer, second)
        secret.replace(data(second))
        await balancer.eventually(lambda: is_served(balancer, second), seconds=10)
        assert not await is_served(balancer, first), "new connections get the new one"
        assert not streams.done()
        assert await streams == [50, 51]


async def test_files_that_do_not_fit_together_change_nothing(
    balance: Balance, tmp_path: Path
) -> None:
    first, second = certificate(tmp_path / "first"), certificate(tmp_path / "second")
    secret = MountedSecret(tmp_path / "secret", data(first))
    async with serving(Replica("one")) as a, balance(a, **options(secret)) as balancer:
        broken = {"tls.crt": second.certificate.read_bytes(), "tls.key": first.key.read_bytes()}
        secret.replace(broken)
        await asyncio.sleep(1.5)
        assert await is_served(balancer, first)
        secret.replace(data(second))
        await balancer.eventually(lambda: is_served(balancer, second), seconds=10)
