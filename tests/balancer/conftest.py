"""Balancers and a client for one test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from balancer_process import PROGRAM, Balancer, balancing, stop

from fastgen_balancer.picker import Picker
from fastgen_balancer.roster import Roster
from fastgen_balancer.serve import _serve_envoy
from fastgen_cli.plan import free_ports

Balance = Callable[..., AbstractAsyncContextManager[Balancer]]


@pytest.fixture
def balance(tmp_path: Path) -> Balance:
    """`balance(*replicas, **options)` of `balancing`, with the test's own directory."""

    def run(*replicas: str, **options: Any) -> object:
        return balancing(tmp_path, *replicas, **options)

    return run


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        yield client


@asynccontextmanager
async def picking(
    balance: Balance, *replicas: str, arguments: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Balancer, int]]:
    """A balancer whose picker serves gateways, and the port of that."""
    (port,) = free_ports(1)
    given = ("--endpoint-picker-port", str(port), *arguments)
    async with balance(*replicas, arguments=given) as balancer:
        yield balancer, port


@asynccontextmanager
async def balancing_here(directory: Path, roster: Roster) -> AsyncIterator[tuple[Balancer, Picker]]:
    """Envoy, and a picker in this process that serves the roster."""
    port, admin, picker_port = free_ports(3)
    balancer = Balancer(directory, port, admin, 0, picker_port)
    ports = ("--port", port, "--admin-port", admin, "--picker-port", picker_port)
    bootstrap = await asyncio.create_subprocess_exec(
        *PROGRAM, "bootstrap", "--directory", str(directory), "--host", "127.0.0.1",
        *map(str, ports),
    )  # fmt: skip
    assert await bootstrap.wait() == 0
    picker = Picker(directory, "ns")
    picker.serve(roster)
    server = await _serve_envoy(picker, picker_port)
    await balancer.start_envoy()
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            await balancer.eventually(lambda: _is_live(client, admin), seconds=60)
        yield balancer, picker
    finally:
        await stop(balancer.envoy)
        await server.stop()
        await picker.close()


async def _is_live(client: httpx2.AsyncClient, admin: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{admin}/ready")).status_code == 200
    except httpx2.HTTPError:
        return False
