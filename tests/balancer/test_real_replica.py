"""The whole way, with the real runtime and model behind the balancer."""

import asyncio
import signal
from pathlib import Path

import httpx2
import openai
import pytest
from balancer_process import Balancer, generate, idle
from replica_process import MODEL, ReplicaProcess, running_replica

from fastgen_api.names import Metric, Outcome

from .conftest import Balance

pytestmark = pytest.mark.timeout(600)

QUESTION = "What is the capital of France?"


def static(replica: ReplicaProcess) -> str:
    return f"127.0.0.1:{replica.http_port}:{replica.grpc_port}"


def client_of(balancer: Balancer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{balancer.url}/v1", api_key="none", max_retries=0, timeout=300
    )


async def stream_chat(
    client: openai.AsyncOpenAI, max_tokens: int, *, whole: bool = False
) -> tuple[str, str | None]:
    """The text and the finish reason of a streamed answer; whole: it has all the tokens."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": whole},
    )
    text, reason = "", None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


async def test_both_protocols_and_each_request_counted_once(
    balance: Balance, smollm2_path: Path, tmp_path: Path
) -> None:
    with running_replica(smollm2_path, tmp_path) as replica:
        async with balance(static(replica)) as balancer, client_of(balancer) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            text, reason = await stream_chat(client, 32)
            assert "Paris" in text
            assert reason in ("stop", "length")
            assert "".join(await generate(balancer, "The capital of France is", 8))
            with pytest.raises(openai.BadRequestError):
                await stream_chat(client, -1)

            await balancer.eventually(lambda: idle(balancer))
            assert await balancer.metric(Metric.REQUESTS) == 0
            assert replica.metric(Metric.REQUESTS, outcome=Outcome.GOOD.value) == 2
            first_bytes = "fastgen_balancer_time_to_first_byte_seconds_count"
            assert await balancer.metric(first_bytes) == 2


async def test_a_replica_that_drains_and_one_that_dies(
    balance: Balance, smollm2_path: Path, tmp_path: Path
) -> None:
    with (
        running_replica(smollm2_path, tmp_path) as first,
        running_replica(smollm2_path, tmp_path) as second,
    ):
        async with (
            balance(static(first), static(second)) as balancer,
            client_of(balancer) as client,
        ):
            streams = [asyncio.create_task(stream_chat(client, 150, whole=True)) for _ in range(6)]
            await balancer.eventually(
                lambda: all(r.load().running_requests for r in (first, second))
            )
            first.process.send_signal(signal.SIGTERM)
            streams += [asyncio.create_task(stream_chat(client, 10)) for _ in range(6)]
            answers = await asyncio.gather(*streams)
            assert all(reason in ("stop", "length") for _, reason in answers)
            assert await balancer.metric(Metric.REQUESTS) == 0
            assert await asyncio.to_thread(first.process.wait, 60) == 0

            broken = asyncio.create_task(stream_chat(client, 400, whole=True))
            await balancer.eventually(lambda: second.load().running_requests)
            second.process.kill()
            with pytest.raises((openai.APIError, httpx2.RemoteProtocolError)):
                await broken
            await balancer.eventually(
                lambda: balancer.metric(Metric.REQUESTS, outcome=Outcome.ERROR.value)
            )
            assert await balancer.metric(Metric.REQUESTS) == 1
            await balancer.eventually(lambda: idle(balancer))
