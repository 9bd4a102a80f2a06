"""Balancers and a client for one test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from balancer_process import Balancer, balancing, free_ports

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
