"""A balancer of real processes on loopback: Envoy and the picker."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx2

from fastgen_api.names import Metric
from fastgen_api.v1 import inference_pb2 as pb
from fastgen_api.v1 import inference_pb2_grpc
from fastgen_cli.plan import free_ports

PROGRAM = (sys.executable, "-m", "fastgen_balancer.main")


@dataclass
class Balancer:
    directory: Path
    port: int
    admin_port: int
    http_port: int
    picker_port: int
    logs: list[Path] = field(default_factory=list)
    envoy: asyncio.subprocess.Process | None = None
    picker: asyncio.subprocess.Process | None = None
    picker_arguments: tuple[str, ...] = ()
    picker_program: tuple[str, ...] = PROGRAM
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start_picker(self) -> None:
        program = self.picker_program
        self.picker = await self._start("picker", *self.picker_arguments, program=program)

    async def start_envoy(self) -> None:
        self.envoy = await self._start("envoy", "--log-level", "info")

    async def _start(
        self, verb: str, *arguments: str, program: tuple[str, ...] = PROGRAM
    ) -> asyncio.subprocess.Process:
        path = self.directory / f"{verb}-{len(self.logs)}.log"
        self.logs.append(path)
        with path.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *program,
                verb,
                "--directory",
                str(self.directory),
                *arguments,
                stderr=log,
                env=os.environ | self.environment,
            )

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the picker's series of that name with those labels."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"http://127.0.0.1:{self.http_port}/metrics")).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if all(w in line for w in wanted)
        )

    async def eventually(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        await eventually(holds, seconds)


async def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until `holds()`, plain or a coroutine, is true."""
    async with asyncio.timeout(seconds):
        while True:
            value = holds()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.05)


async def stop(process: asyncio.subprocess.Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    process.send_signal(signal.SIGKILL)
    await process.wait()


@contextlib.asynccontextmanager
async def balancing(
    directory: Path,
    *replicas: str,
    arguments: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    bootstrap_arguments: tuple[str, ...] = (),
    configure: Callable[[Balancer], None] = lambda _: None,
    picker_program: tuple[str, ...] = PROGRAM,
) -> AsyncIterator[Balancer]:
    """Runs a balancer for these replicas (HOST:HTTP_PORT:GRPC_PORT) until the block ends.

    configure: may write another configuration than bootstrap's before Envoy starts.
    """
    port, admin, http, picker = free_ports(4)
    balancer = Balancer(directory, port, admin, http, picker, environment=environment or {})
    balancer.picker_program = picker_program
    bootstrap = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *("bootstrap", "--directory", str(directory), "--host", "127.0.0.1"),
        *("--port", str(port), "--admin-port", str(admin), "--picker-port", str(picker)),
        *bootstrap_arguments,
    )
    assert await bootstrap.wait() == 0
    configure(balancer)
    balancer.picker_arguments = (
        *(argument for replica in replicas for argument in ("--static", replica)),
        *("--picker-port", str(picker), "--http-port", str(http), "--http-host", "127.0.0.1"),
        *("--settle-seconds", "0.2", *arguments),
    )
    try:
        await balancer.start_picker()
        await balancer.start_envoy()
        await balancer.eventually(lambda: ready(balancer), seconds=60)
        yield balancer
    finally:
        await stop(balancer.picker)
        await stop(balancer.envoy)


async def ready(balancer: Balancer) -> bool:
    """Raises AssertionError with their logs once the picker or Envoy has ended."""
    for process in (balancer.picker, balancer.envoy):
        if process is not None and process.returncode is not None:
            logs = "\n".join(path.read_text() for path in balancer.logs)
            raise AssertionError(f"ended with {process.returncode}:\n{logs}")
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{balancer.http_port}/readyz"
            return (await client.get(url)).status_code == 200
    except httpx2.HTTPError:
        return False


async def complete(
    http: httpx2.AsyncClient,
    balancer: Balancer,
    prompt: str,
    max_tokens: int,
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    """A completion over HTTP, read to its end."""
    body = {"prompt": prompt, "max_tokens": max_tokens}
    return await http.post(f"{balancer.url}/v1/completions", json=body, headers=headers)


async def generate(balancer: Balancer, prompt: str, max_tokens: int) -> list[str]:
    """The messages' texts of a Generate call, on a connection of its own."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return [message.text async for message in stub.Generate(prompt_of(prompt, max_tokens))]


async def idle(balancer: Balancer) -> bool:
    return await balancer.metric(Metric.IN_FLIGHT_REQUESTS) == 0


def prompt_of(text: str, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, stopping=pb.Stopping(max_tokens=max_tokens))
