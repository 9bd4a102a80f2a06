"""Balancers and a client for one test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from balancer_process import Balancer, balancing

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
