"""Clients that leave or dawdle hurt nobody else."""

import asyncio
import json
import socket

import grpc
import httpx2
import pytest
from bystander import bystander
from open_requests import running, wait_for_running
from replica_process import ReplicaProcess

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

LONG = {"prompt": "Once upon a time", "max_tokens": 900, "stream": True, "ignore_eos": True}


async def test_a_client_that_leaves_frees_its_blocks(replica: ReplicaProcess) -> None:
    excluded = replica.metric("fastgen_requests_total", outcome="excluded")
    async with httpx2.AsyncClient(base_url=replica.url, timeout=30) as client:
        async with client.stream("POST", "/v1/completions", json=LONG) as response:
            await response.aiter_raw().__anext__()
            assert running(replica) == 1
        assert await wait_for_running(replica, 0) < 2
    assert replica.metric("fastgen_requests_total", outcome="excluded") == excluded + 1
    assert replica.is_idle()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_before_its_first_token(
    replica: ReplicaProcess, is_stream: bool
) -> None:
    words = "one two three " if is_stream else "red green blue "  # nothing of it is cached
    body = LONG | {"prompt": words * 300, "max_tokens": 1, "stream": is_stream}
    async with httpx2.AsyncClient(base_url=replica.url, timeout=30) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        await wait_for_running(replica, 1)
        request.cancel()
        assert await wait_for_running(replica, 0) < 2


async def test_a_cancelled_call_frees_its_blocks(replica: ReplicaProcess) -> None:
    async with replica.channel() as channel:
        request = inference_pb2.GenerateRequest(text="Once")
        request.stopping.ignore_eos = True
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        await call.read()
        assert running(replica) == 1
        call.cancel()
        assert await wait_for_running(replica, 0) < 2


async def test_a_deadline_ends_a_call_and_is_bad(replica: ReplicaProcess) -> None:
    errors = replica.metric("fastgen_requests_total", outcome="error")
    async with replica.channel() as channel:
        request = inference_pb2.GenerateRequest(text="Once")
        request.stopping.ignore_eos = True
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=0.7)
        with pytest.raises(grpc.aio.AioRpcError) as passed:
            _ = [response async for response in call]
        assert passed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await wait_for_running(replica, 0) < 2
    assert replica.metric("fastgen_requests_total", outcome="error") == errors + 1


async def test_a_balancer_counts_its_refusals_itself(replica: ReplicaProcess) -> None:
    """With the balancer's header the replica counts no refusal, without it it does.

    So it does where no balancer hears of the end, as of a gateway's requests.
    """
    body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}
    refused = replica.metric("fastgen_requests_total", outcome="refused")
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:

        async def ask(number: int) -> int:
            headers = {"x-fastgen-waited-ms": "5"} if number % 2 else {}
            if number == 5:
                headers["x-fastgen-unwitnessed"] = "1"
            return (await client.post("/v1/completions", json=body, headers=headers)).status_code

        filling = [asyncio.create_task(ask(0)) for _ in range(48)]
        await wait_for_running(replica, 48)
        assert [await ask(number) for number in range(6)] == [429] * 6
        for task in filling:
            task.cancel()
    assert replica.metric("fastgen_requests_total", outcome="refused") == refused + 4


async def test_the_wait_at_the_balancer_is_part_of_the_time_to_first_token(
    replica: ReplicaProcess,
) -> None:
    name = "fastgen_time_to_first_token_seconds_sum"
    before = replica.metric(name)
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:
        body = {"prompt": "Once", "max_tokens": 1}
        await client.post("/v1/completions", json=body, headers={"x-fastgen-waited-ms": "60000"})
    assert 60 <= replica.metric(name) - before < 90


async def test_a_slow_reader_holds_up_nobody(replica: ReplicaProcess) -> None:
    """It reads nothing at all; its tokens wait for it, and others' do not."""
    body = json.dumps(LONG | {"max_tokens": 200}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", replica.http_port)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy.sendall(head.encode() + body)
        await wait_for_running(replica, 1)
        async with bystander(replica):
            pass
