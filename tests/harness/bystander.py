"""A client whose stream others must not disturb."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from replica_process import MODEL, ReplicaProcess


@asynccontextmanager
async def bystander(replica: ReplicaProcess) -> AsyncIterator[None]:
    """A stream of another client, which must get all its tokens while the block runs."""
    async with replica.openai() as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt="Count: 1, 2, 3,",
            max_tokens=40,
            stream=True,
            extra_body={"ignore_eos": True},
        )

        async def read() -> tuple[str | None, float]:
            """Why it ended, and the longest time without a token."""
            reason, longest, last = None, 0.0, time.monotonic()
            async for chunk in stream:
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                reason = chunk.choices[0].finish_reason
            return reason, longest

        reading = asyncio.create_task(read())
        yield
        reason, longest = await reading
    assert reason == "length"
    assert longest < 5
