"""Waits for what other processes do."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


async def wait_until(what: str, holds: Callable[[], bool], seconds: float = 20) -> None:
    """Fails when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, collected by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
