"""What makes no sense gets an error, and hurts nobody else."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2
import openai
import pytest
from bystander import bystander
from replica_process import MODEL, ReplicaProcess

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_runtime.protocols.grpc_server import MAX_PROXIED_BYTES


def _http(body: bytes, content_type: str = "application/json") -> dict[str, Any]:
    return {"content": body, "headers": {"content-type": content_type}}


HTTP_TABLE: list[tuple[str, str, dict[str, Any], int, str | None]] = [
    ("chat/completions", "broken JSON", _http(b'{"messages": ['), 400, None),
    ("chat/completions", "no JSON", _http(b"\x00\xff" * 500), 400, None),
    ("chat/completions", "nothing", _http(b""), 400, None),
    ("completions", "deep nesting", _http(b'{"prompt":' + b"[" * 500_000), 400, "prompt[0][0]"),
    ("completions", "deep nesting", _http(b'{"user":' + b'{"a":' * 100_000), 400, None),
    ("completions", "a lone surrogate", _http(b'{"prompt":"\\ud800"}'), 400, None),
    ("completions", "an infinite number", _http(b'{"prompt":"x","top_p":1e999}'), 400, "top_p"),
    ("completions", "NaN", _http(b'{"prompt":"x","temperature":NaN}'), 400, None),
    ("completions", "another model", {"json": {"model": "x", "prompt": "x"}}, 404, "model"),
    ("completions", "no prompt", {"json": {"model": MODEL}}, 400, "prompt"),
    ("completions", "an empty prompt", {"json": {"prompt": ""}}, 400, "prompt"),
    ("completions", "no token", {"json": {"prompt": []}}, 400, "prompt"),
    ("completions", "no such token", {"json": {"prompt": [49_152]}}, 400, "prompt"),
    ("completions", "a negative token", {"json": {"prompt": [-1]}}, 400, "prompt"),
    ("completions", "a huge token", {"json": {"prompt": [2**70]}}, 400, "prompt"),
    ("completions", "too many tokens", {"json": {"prompt": [5] * 1024}}, 400, "prompt"),
    ("completions", "too long a text", {"json": {"prompt": "word " * 5000}}, 400, "prompt"),
    ("completions", "many stops", {"json": {"prompt": "x", "stop": ["x"] * 100_000}}, 400, "stop"),
    ("completions", "a huge max_tokens", {"json": {"prompt": "x", "max_tokens": -(2**80)}}, 400,
     "max_tokens"),
    ("completions", "100 MB", _http(b"x" * 100_000_000), 413, None),
    ("completions", "5 MB", _http(b"x" * 5_000_000), 413, None),
    ("chat/completions", "a role", {"json": {"messages": [{"role": "x", "content": ""}]}}, 400,
     "messages[0].role"),
    ("chat/completions", "many messages",
     {"json": {"messages": [{"role": "user", "content": ""}] * 20_000}}, 400, "messages"),
    ("nowhere", "no such path", {"json": {}}, 404, None),
]  # fmt: skip


async def test_nonsense_over_http_gets_an_error_and_hurts_nobody(replica: ReplicaProcess) -> None:
    async with bystander(replica), httpx2.AsyncClient(timeout=30) as client:
        for path, what, request, status, param in HTTP_TABLE:
            try:
                answer = await client.post(f"{replica.url}/v1/{path}", **request)
            except (httpx2.WriteError, httpx2.ReadError):
                # The connection was closed before the body was sent.
                assert what == "100 MB"
                continue
            assert answer.status_code == status, (what, answer.text[:300])
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}, what
            assert error["param"] == param, (what, error)
            assert 5 < len(error["message"]) < 500, what
        answer = await client.get(f"{replica.url}/v1/completions")
        assert answer.status_code == 405
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_prompt_that_is_too_long_is_told_both_numbers(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=MODEL, prompt=[5] * 2000)
        longest = await client.completions.create(
            model=MODEL, prompt=[5] * 1023, max_tokens=50, extra_body={"ignore_eos": True}
        )
    assert "2000 tokens" in refused.value.message
    assert "at most 1023" in refused.value.message
    assert longest.usage is not None
    assert longest.usage.completion_tokens == 1
    assert longest.choices[0].finish_reason == "length"


async def test_an_endless_body_is_cut_off(replica: ReplicaProcess) -> None:
    """Chunked, so that no header announces its size."""
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 100_000
            yield b"x" * 100_000

    async with bystander(replica), httpx2.AsyncClient(timeout=30) as client:
        try:
            answer = await client.post(f"{replica.url}/v1/completions", content=pieces())
            assert answer.status_code == 413
        except (httpx2.WriteError, httpx2.ReadError):
            pass
    assert sent < 50_000_000


Stopping, Sampling = inference_pb2.Stopping, inference_pb2.Sampling
Message = inference_pb2.ChatMessage

GRPC_TABLE: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({}, grpc.StatusCode.INVALID_ARGUMENT, "prompt is missing"),
    ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "prompt is empty"),
    ({"text": "x", "model": "other"}, grpc.StatusCode.NOT_FOUND, "'other' is not served here"),
    ({"text": "x", "sampling": Sampling(temperature=math.nan)},
     grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ({"text": "x", "sampling": Sampling(temperature=-1)},
     grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ({"text": "x", "sampling": Sampling(top_p=math.inf)},
     grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ({"text": "x", "sampling": Sampling(top_p=0)}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ({"text": "x", "stopping": Stopping(max_tokens=0)},
     grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
    ({"text": "x", "stopping": Stopping(stop=["y"] * 1_000_000)},
     grpc.StatusCode.INVALID_ARGUMENT, "stop"),
    ({"text": "x", "stopping": Stopping(stop=[""])}, grpc.StatusCode.INVALID_ARGUMENT, "stop"),
    ({"text": "x", "sampling": Sampling(n=0)}, grpc.StatusCode.INVALID_ARGUMENT, "n must be"),
    ({"text": "x", "sampling": Sampling(n=2**32 - 1)},
     grpc.StatusCode.INVALID_ARGUMENT, "n must be"),
    ({"text": "x", "sampling": Sampling(n=100)},
     grpc.StatusCode.INVALID_ARGUMENT, "n is 100, and this replica takes at most 48 choices"),
    ({"text": "x", "sampling": Sampling(top_k=2**32 - 1)},
     grpc.StatusCode.INVALID_ARGUMENT, "top_k"),
    ({"text": "x", "sampling": Sampling(repetition_penalty=math.nan)},
     grpc.StatusCode.INVALID_ARGUMENT, "repetition_penalty"),
    ({"text": "x", "sampling": Sampling(logit_bias={2**32 - 1: 1})},
     grpc.StatusCode.INVALID_ARGUMENT, "logit_bias"),
    ({"text": "x", "sampling": Sampling(logit_bias={1: math.inf})},
     grpc.StatusCode.INVALID_ARGUMENT, "logit_bias[1]"),
    ({"text": "x", "stopping": Stopping(stop_token_ids=[2**32 - 1])},
     grpc.StatusCode.INVALID_ARGUMENT, "stop_token_ids"),
    ({"text": "x", "stopping": Stopping(min_tokens=5000)},
     grpc.StatusCode.INVALID_ARGUMENT, "min_tokens is 5000, and the prompt leaves room for 1023"),
    ({"text": "x", "output": inference_pb2.Output(logprobs=21)},
     grpc.StatusCode.INVALID_ARGUMENT, "logprobs"),
    ({"text": "x", "output": inference_pb2.Output(prompt_logprobs=2**32 - 1)},
     grpc.StatusCode.INVALID_ARGUMENT, "prompt_logprobs"),
    ({"text": "x", "regex": "a(", "priority": 1},
     grpc.StatusCode.INVALID_ARGUMENT, "grammar is no regular expression"),
    ({"text": "x", "json_schema": "{"},
     grpc.StatusCode.INVALID_ARGUMENT, "grammar is no JSON schema"),
    ({"text": "x", "lark": "x" * 300_000}, grpc.StatusCode.INVALID_ARGUMENT, "grammar has more"),
    ({"text": "x", "regex": "a+", "stopping": Stopping(ignore_eos=True)},
     grpc.StatusCode.INVALID_ARGUMENT, "ignore_eos contradicts a grammar"),
    ({"chat": inference_pb2.Chat(messages=[Message(role="user", content="x")],
                                 tools=[inference_pb2.Tool(name="f", parameters="[")])},
     grpc.StatusCode.INVALID_ARGUMENT, "chat.tools[0].parameters"),
    ({"chat": inference_pb2.Chat(messages=[Message(role="user", content="x")],
                                 tools=[inference_pb2.Tool(name="f")])},
     grpc.StatusCode.INVALID_ARGUMENT, "chat.tools cannot be used: this model"),
    ({"token_ids": inference_pb2.TokenIds(ids=[2**32 - 1])},
     grpc.StatusCode.INVALID_ARGUMENT, "token id"),
    ({"token_ids": inference_pb2.TokenIds(ids=[7] * 1_000_000)},
     grpc.StatusCode.INVALID_ARGUMENT, "1000000 tokens"),
    ({"chat": inference_pb2.Chat()}, grpc.StatusCode.INVALID_ARGUMENT, "messages"),
    ({"chat": inference_pb2.Chat(messages=[Message(role="x")])},
     grpc.StatusCode.INVALID_ARGUMENT, "messages[0].role"),
    ({"chat": inference_pb2.Chat(messages=[Message()] * 500_000)},
     grpc.StatusCode.INVALID_ARGUMENT, "at most 1024 messages"),
    ({"text": "x" * 2_000_000}, grpc.StatusCode.INVALID_ARGUMENT, "2000000 characters"),
    ({"text": "x" * (MAX_PROXIED_BYTES - 16)}, grpc.StatusCode.INVALID_ARGUMENT, "characters"),
    ({"text": "x" * 100_000_000}, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    ({"text": "x", "request_id": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
]  # fmt: skip


async def test_nonsense_over_grpc_gets_an_error_and_hurts_nobody(replica: ReplicaProcess) -> None:
    async with bystander(replica), replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for fields, code, words in GRPC_TABLE:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.Generate(inference_pb2.GenerateRequest(**fields)).read()
            assert failed.value.code() is code, (str(fields)[:80], failed.value.details())
            assert words in (failed.value.details() or ""), str(fields)[:80]
        broken = channel.unary_stream("/fastgen.v1.InferenceService/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await broken(b"\xff\xff\xff").read()
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        missing = channel.unary_stream("/fastgen.v1.InferenceService/Nothing")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await missing(b"").read()
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_nonsense_below_http_hurts_nobody(replica: ReplicaProcess) -> None:
    async with bystander(replica):
        for port in (replica.http_port, replica.grpc_port):
            for data in (b"\x00" * 10_000, b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                try:
                    async with asyncio.timeout(1):
                        await reader.read()
                except (TimeoutError, ConnectionError):
                    pass
                writer.close()
