"""The compiled fake replica keeps the replica's contract, by the real stubs and by HTTP."""

import asyncio
import json
from typing import Any

import grpc
import httpx2
import pytest
from balancer_process import eventually, prompt_of
from compiled_replica import CompiledReplica, ask, compiled_replicas

from fastgen_api.names import Header
from fastgen_api.v1 import inference_pb2 as pb
from fastgen_api.v1 import inference_pb2_grpc

BLOCK_BYTES = 64 * 4


def _stub(channel: grpc.aio.Channel) -> inference_pb2_grpc.InferenceServiceStub:
    return inference_pb2_grpc.InferenceServiceStub(channel)


async def _chat(
    http: httpx2.AsyncClient, replica: CompiledReplica, messages: list[dict[str, str]]
) -> tuple[str, dict[str, Any], httpx2.Response]:
    """Text, usage and answer of a chat of 20 tokens."""
    url = f"http://127.0.0.1:{replica.http_port}/v1/chat/completions"
    answer = await http.post(url, json={"messages": messages, "max_tokens": 20, "stream": True})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    text = "".join(choice["delta"]["content"] for each in events for choice in each["choices"])
    return text, events[-1]["usage"], answer


async def test_steps_take_their_time_and_the_headers_come_with_the_first_token() -> None:
    async with compiled_replicas(1, "-base-seconds=0.1") as (replica,):
        loop = asyncio.get_running_loop()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as channel:
            began = loop.time()
            call = _stub(channel).Generate(prompt_of("x" * 400, 5))
            headers = dict(await call.initial_metadata())
            assert loop.time() - began >= 0.1
            answers = [answer async for answer in call]
            assert loop.time() - began >= 0.5
        assert headers[Header.PROMPT_TOKENS] == "100"
        assert headers[Header.REPLICA]
        assert [list(each.token_ids) for each in answers] == [[i] for i in range(5)]
        assert answers[-1].finish_reason == pb.FINISH_REASON_LENGTH
        assert answers[-1].usage.prompt_tokens == 100
        assert answers[-1].usage.output_tokens == 5


async def test_a_conversations_blocks_are_found_again(http: httpx2.AsyncClient) -> None:
    async with compiled_replicas(1, "-base-seconds=0.001", "-blocks=40") as (replica,):
        said = [{"role": "user", "content": "a" * 10 * BLOCK_BYTES}]
        text, usage, answer = await _chat(http, replica, said)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer.headers[Header.PROMPT_TOKENS] == str(usage["prompt_tokens"])
        said += [{"role": "assistant", "content": text}, {"role": "user", "content": "b" * 999}]
        _, usage, _ = await _chat(http, replica, said)
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 10 * 64
        other = [{"role": "user", "content": "c" * 40 * BLOCK_BYTES}]
        await _chat(http, replica, other)
        _, usage, _ = await _chat(http, replica, said)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "others have taken the place"


async def test_a_full_or_draining_replica_refuses_and_says_so(http: httpx2.AsyncClient) -> None:
    flags = ("-base-seconds=0.1", "-max-concurrent=1")
    async with (
        compiled_replicas(1, *flags) as (replica,),
        grpc.aio.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as channel,
    ):
        stub = _stub(channel)
        open_ = stub.Generate(prompt_of("hello", 15))
        await open_.initial_metadata()
        load = await stub.GetLoad(pb.GetLoadRequest())
        assert (load.running_requests, load.max_concurrent_requests) == (1, 1)
        assert not load.draining
        assert await _refusal(stub) is grpc.StatusCode.RESOURCE_EXHAUSTED
        url = f"http://127.0.0.1:{replica.http_port}/v1/completions"
        body = {"prompt": "hello", "max_tokens": 1}
        assert (await http.post(url, json=body)).status_code == 429
        leaving = asyncio.create_task(replica.drain())

        async def drains() -> bool:
            return bool((await stub.GetLoad(pb.GetLoadRequest())).draining)

        await eventually(drains)
        assert await _refusal(stub) is grpc.StatusCode.UNAVAILABLE
        assert (await http.post(url, json=body)).status_code == 503
        assert len([answer async for answer in open_]) == 15, "what was open ends well"
        await leaving


async def _refusal(stub: inference_pb2_grpc.InferenceServiceStub) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        async for _ in stub.Generate(prompt_of("hello", 1)):
            pass
    return failure.value.code()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_the_client_counts_tokens_and_what_breaks(protocol: str) -> None:
    async with compiled_replicas(1, "-base-seconds=0.01", "-max-concurrent=4") as (replica,):
        port = replica.grpc_port if protocol == "grpc" else replica.http_port
        target = f"127.0.0.1:{port}"
        told = await ask(replica.program, target, protocol, streams=4, tokens=5, seconds=1)
        assert told["failed"] == 0
        assert told["requests"] > 0
        assert told["tokens"] >= 5 * (told["requests"] - 8)
        assert 5 <= told["gap_ms"]["p50"] < 1000
        assert told["ttft_ms"]["p50"] >= told["held_ms"]["p50"] > 0
        full = await ask(
            replica.program, target, protocol, streams=8, tokens=5, seconds=1, warm_up=0
        )
        assert full["failed"] == sum(full["errors"].values()) > 0
        assert all("full" in error for error in full["errors"])
