"""Calls that no honest client makes: each gets its answer, and the replica keeps nothing of it."""

import asyncio
import time

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from replica_process import MODEL, ReplicaProcess

from fastgen_api.names import Header
from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

METHODS = ["/fastgen.v1.InferenceService/Generate", "/fastgen.v1.InferenceService/GetLoad"]
NOT_UTF8 = b"\x0a\x02\xff\xfe"
"""A request_id of two bytes that are no UTF-8."""


@pytest.mark.parametrize("data", [b"\xff\xff\xff", NOT_UTF8])
async def test_what_is_no_message_is_the_callers_error(
    replica: ReplicaProcess, data: bytes
) -> None:
    excluded = replica.metric("fastgen_requests_total", outcome="excluded")
    events = len(replica.events())
    async with replica.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_stream(METHODS[0])(data).read()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (failed.value.details() or "").startswith("the message cannot be read")
    trailing = failed.value.trailing_metadata()
    assert trailing is not None
    assert trailing["x-fastgen-replica"] == "replica-under-test"
    assert replica.metric("fastgen_requests_total", outcome="excluded") == excluded + 1
    # Its own line in the log of requests, and no defect's.
    (line,) = replica.events()[events:]
    assert (line["level"], line["message"], line["end"]) == ("info", "request", "invalid")


async def test_load_is_told_to_no_broken_message(replica: ReplicaProcess) -> None:
    async with replica.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(METHODS[1])(b"\xff\xff\xff")
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", METHODS)
async def test_a_call_without_a_message_ends(replica: ReplicaProcess, method: str) -> None:
    async with replica.channel() as channel:
        call = channel.stream_stream(method)()
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async with asyncio.timeout(10):
                await call.read()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == "the call ended without a message"


@pytest.mark.parametrize("method", METHODS)
async def test_what_swells_is_no_full_replica(replica: ReplicaProcess, method: str) -> None:
    """40 KB on the wire pass the balancer, which would ask every other replica."""
    request = inference_pb2.GenerateRequest(text="a" * 40_000_000).SerializeToString()
    async with replica.channel() as channel:
        call = channel.unary_stream(method)(request, compression=grpc.Compression.Gzip)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "once decompressed, is larger than the" in (failed.value.details() or "")


async def test_gzip_is_opened_and_deflate_is_not_taken(replica: ReplicaProcess) -> None:
    request = inference_pb2.GenerateRequest(text="Hi " * 100)
    request.stopping.max_tokens = 1
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        (response,) = [r async for r in stub.Generate(request, compression=grpc.Compression.Gzip)]
        assert response.usage.prompt_tokens == 101
        long_name = health_pb2.HealthCheckRequest(service="a" * 200)
        for compression, code in (
            (grpc.Compression.Gzip, grpc.StatusCode.NOT_FOUND),
            (grpc.Compression.Deflate, grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await health_pb2_grpc.HealthStub(channel).Check(long_name, compression=compression)
            assert failed.value.code() is code


async def test_long_metadata_is_no_full_replica(replica: ReplicaProcess) -> None:
    """Envoy lets it through, and would ask every other replica."""
    request = inference_pb2.GenerateRequest(text="Hi")
    request.stopping.max_tokens = 1
    with grpc.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        metadata = [(f"x-{number}", "v" * 4000) for number in range(15)]
        assert list(stub.Generate(request, metadata=metadata, timeout=30))
        names = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert "fastgen.v1.InferenceService" in names


async def test_no_path_redirects_to_the_host_that_a_client_names(replica: ReplicaProcess) -> None:
    async with httpx2.AsyncClient(base_url=replica.url) as client:
        for path in ("/v1/chat/completions/", "/health/"):
            answer = await client.post(path, json={}, headers={"host": "evil.example"})
            assert answer.status_code == 404
            assert "location" not in answer.headers
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_false_wait_spoils_no_sum(replica: ReplicaProcess) -> None:
    name = "fastgen_time_to_first_token_seconds_sum"
    before = replica.metric(name)
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:
        for wait in ("1e308", "3600001", "-1", "nan", "inf"):
            body, headers = {"prompt": "Hi", "max_tokens": 1}, {"x-fastgen-waited-ms": wait}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
    assert 0 < replica.metric(name) - before < 60


async def test_big_prompts_hold_up_neither_health_nor_short_prompts(
    replica: ReplicaProcess,
) -> None:
    """They fit in bytes, so that the tokenizer has to count them, and are too long after all."""
    async with httpx2.AsyncClient(base_url=replica.url, timeout=120) as client:
        big = {"prompt": "naïve 42 \n" * 7000}
        asked = [asyncio.create_task(client.post("/v1/completions", json=big)) for _ in range(20)]
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        assert (await client.get("/health")).status_code == 200
        short = await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
        took = time.monotonic() - begun
        assert short.status_code == 200
        answers = await asyncio.gather(*asked)
        all_took = time.monotonic() - begun
    assert took < max(0.5 * all_took, 0.5)
    assert {answer.status_code for answer in answers} == {400}
    assert "tokens; with room" in answers[0].json()["error"]["message"]


async def test_a_hopeless_prompt_is_told_both_numbers(replica: ReplicaProcess) -> None:
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:
        answer = await client.post("/v1/completions", json={"prompt": "x" * 1_000_000})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "1000000 bytes" in answer.json()["error"]["message"]
    assert str(81 * 1024) in answer.json()["error"]["message"]


async def test_the_model_is_whatever_a_balancer_has_judged(replica: ReplicaProcess) -> None:
    """Which it tells in a header that no client brings through it."""
    judged = {Header.MODEL_JUDGED: "1"}
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:
        for path, prompt in (
            ("/v1/completions", {"prompt": "Hi"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ):
            body = {"max_tokens": 1, "model": "another"} | prompt
            answer = await client.post(path, json=body, headers=judged)
            assert (answer.status_code, answer.json()["model"]) == (200, MODEL)
            refused = await client.post(path, json=body)
            assert refused.json()["error"]["code"] == "model_not_found"
    request = inference_pb2.GenerateRequest(text="Hi", model="another")
    request.stopping.max_tokens = 1
    with grpc.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert list(stub.Generate(request, metadata=tuple(judged.items()), timeout=30))
        with pytest.raises(grpc.RpcError) as failure:
            list(stub.Generate(request, timeout=30))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
