"""Prompts that crash whichever replica computes them."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, generate, idle
from small_replica import replica_process

from fastgen_api.names import Header, Metric
from fastgen_api.v1 import inference_pb2 as pb
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance

Processes = list[asyncio.subprocess.Process]


async def replicas(stack: AsyncExitStack, number: int) -> tuple[list[str], Processes]:
    """That many replicas, each in a process of its own: addresses, processes."""
    pairs = [await stack.enter_async_context(replica_process(f"r{i}")) for i in range(number)]
    return [address for address, _ in pairs], [process for _, process in pairs]


def alive(processes: Processes) -> int:
    return sum(process.returncode is None for process in processes)


async def _convicted(balancer: Balancer, number: int) -> bool:
    return await balancer.metric(Metric.QUARANTINED_PROMPTS) == number


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_poison_prompt_kills_two_replicas_and_no_third(
    balance: Balance, http: httpx2.AsyncClient, protocol: str
) -> None:
    """Sent again at once, and again, by both protocols; all other requests are served."""
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 4)
        balancer = await stack.enter_async_context(balance(*addresses))
        await asyncio.sleep(0.6)

        async def send() -> tuple[int, str]:
            """HTTP status, or gRPC's number, and the refusal's code or words."""
            if protocol == "http":
                answer = await complete(http, balancer, "some poison", 2)
                return answer.status_code, answer.json()["error"]["code"]
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await generate(balancer, "some poison", 2)
            return failure.value.code().value[0], failure.value.details() or ""

        refused = {
            "http": [(503, "unavailable"), (503, "replica_failed"), (422, "prompt_quarantined")],
            "grpc": [(14, ""), (14, "just failed"), (9, "refused for a while")],
        }[protocol]
        for _ in range(12):
            status, words = await send()
            assert any(status == s and text in words for s, text in refused), (status, words)
            await asyncio.sleep(0.05)
        await balancer.eventually(lambda: _convicted(balancer, 1))
        status, words = await send()
        assert status == refused[-1][0]
        assert refused[-1][1] in words

        other = await complete(http, balancer, "some poison", 9, headers={"user-agent": "x"})
        assert other.status_code == 422, "whoever sends it, with whatever limits"
        assert int(other.headers["retry-after"]) > 30
        for _ in range(4):
            assert (await complete(http, balancer, "good", 1)).status_code == 200
        assert alive(processes) == 2
        assert await balancer.metric(Metric.PICKS, result="quarantined") >= 2
        log = balancer.logs[0].read_text()
        assert "prompt quarantined" in log
        assert "some poison" not in log
        await balancer.eventually(lambda: idle(balancer))


async def test_who_was_there_by_chance_is_served(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Streams that broke are sent again, once and then as always; the poison finds no third."""
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 4)
        balancer = await stack.enter_async_context(balance(*addresses))
        await asyncio.sleep(0.6)
        chats = [f"gap=0.1 chat {i}" for i in range(8)]
        streams = [asyncio.create_task(complete(http, balancer, chat, 15)) for chat in chats]
        await asyncio.sleep(0.5)
        assert (await complete(http, balancer, "poison", 2)).status_code == 503
        answers = await asyncio.gather(*streams, return_exceptions=True)
        broken = [chats[i] for i, each in enumerate(answers) if isinstance(each, Exception)]
        assert broken, "half of the replicas are gone"
        await balancer.eventually(lambda: _convicted(balancer, 1))
        for chat in broken:
            again = await complete(http, balancer, chat, 3)
            assert again.text.endswith("data: [DONE]\n\n")
        assert (await complete(http, balancer, "poison", 2)).status_code == 422
        assert alive(processes) == 2


async def test_a_suspect_is_not_tried_twice(balance: Balance, http: httpx2.AsyncClient) -> None:
    """Its replica dies under its stream, which Envoy does not repeat; the next before its token."""
    async with AsyncExitStack() as stack:
        addresses, processes = await replicas(stack, 3)
        balancer = await stack.enter_async_context(balance(*addresses))
        await asyncio.sleep(0.6)
        prompt = "first=2 gap=0.1"
        for pause in (2.5, 1.0):
            call = asyncio.create_task(generate(balancer, prompt, 50))
            await asyncio.sleep(pause)
            for address, process in zip(addresses, processes, strict=True):
                if process.returncode is None and await _runs(address):
                    process.kill()
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call
            assert failure.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.sleep(0.6)
        assert alive(processes) == 1
        await balancer.eventually(lambda: _convicted(balancer, 1))
        assert await balancer.metric(Metric.RETRIES) == 0
        assert (await complete(http, balancer, prompt, 1)).status_code == 422
        assert (await complete(http, balancer, "good", 1)).headers[Header.REPLICA]


async def _runs(address: str) -> bool:
    """Whether a replica has a request open."""
    host, _, ports = address.partition(":")
    async with grpc.aio.insecure_channel(f"{host}:{ports.partition(':')[2]}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return (await stub.GetLoad(pb.GetLoadRequest(), timeout=5)).running_requests > 0
