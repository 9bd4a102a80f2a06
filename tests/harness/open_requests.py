"""How many requests a replica has open."""

import asyncio
import time

from replica_process import ReplicaProcess


def running(replica: ReplicaProcess) -> int:
    load = replica.load()
    return load.running_requests + load.waiting_requests


async def wait_for_running(replica: ReplicaProcess, count: int) -> float:
    """Seconds until so many requests are open."""
    begun = time.monotonic()
    while running(replica) != count:
        assert time.monotonic() - begun < 10, f"{running(replica)} requests are open"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun
