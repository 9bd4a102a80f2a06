"""What a client sees of a replica, with the clients that users have."""

import asyncio
import json

import grpc
import httpx2
import openai
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from replica_process import MODEL, ReplicaProcess

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
SERVICE = "fastgen.v1.InferenceService"


async def test_a_streamed_chat(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    *told, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told).startswith(
        "The capital of France is Paris."
    )
    assert told[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in told[:-1]] == [None] * (len(told) - 1)
    assert told[-1].choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.prompt_tokens == 37
    assert usage.usage.total_tokens == 37 + usage.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_whole_chat_says_the_same_as_a_streamed_one(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=CHAT, max_completion_tokens=20, temperature=0
        )
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 37


async def test_completions_take_text_and_tokens(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        options = {"model": MODEL, "max_tokens": 8, "temperature": 0}
        text = await client.completions.create(prompt="The capital of France is", **options)
        tokens = await client.completions.create(prompt=[504, 3575, 282, 4649, 314], **options)
        stream = await client.completions.create(
            prompt="The capital of France is", stream=True, **options
        )
        pieces = [chunk.choices[0].text async for chunk in stream]
    assert text.choices[0].text == tokens.choices[0].text == "".join(pieces)
    assert text.choices[0].finish_reason == "length"
    assert text.usage is not None
    assert text.usage.completion_tokens == 8


async def test_a_stop_string_ends_text_and_computing(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        stopped = await client.completions.create(
            model=MODEL,
            prompt="The capital of France is",
            max_tokens=200,
            temperature=0,
            stop=["aris", "never"],
            extra_body={"ignore_eos": True},
        )
    assert stopped.choices[0].text == " P"
    assert stopped.choices[0].finish_reason == "stop"


async def test_the_same_seed_gives_the_same_text(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:

        async def say(seed: int) -> str:
            answer = await client.completions.create(
                model=MODEL, prompt="Once upon a time", max_tokens=12, seed=seed, top_p=0.9
            )
            return answer.choices[0].text

        first, second, other, negative = await asyncio.gather(say(1), say(1), say(2), say(-1))
    assert first == second
    assert len({first, other, negative}) == 3


async def test_models_are_listed(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_headers_name_replica_and_request(replica: ReplicaProcess) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 1}
    async with httpx2.AsyncClient(base_url=replica.url) as client:
        given = await client.post("/v1/completions", json=body, headers={"x-request-id": "mine-42"})
        made = await client.get("/health")
    assert given.headers["x-request-id"] == "mine-42"
    assert given.headers["x-fastgen-replica"] == "replica-under-test"
    assert given.headers["x-fastgen-prompt-tokens"] == "1"
    assert given.json()["id"] == "cmpl-mine-42"
    assert len(made.headers["x-request-id"]) == 32


async def test_headers_leave_with_the_first_token(replica: ReplicaProcess) -> None:
    """The prompt takes many steps; the headers must not come before they are done."""
    body = {"model": MODEL, "prompt": "seven eight nine " * 300, "max_tokens": 2, "stream": True}
    async with httpx2.AsyncClient(base_url=replica.url, timeout=60) as client:
        before = replica.metric("fastgen_prompt_tokens_total")
        async with client.stream("POST", "/v1/completions", json=body) as response:
            computed = replica.metric("fastgen_prompt_tokens_total") - before
            assert computed == int(response.headers["x-fastgen-prompt-tokens"]) > 800
            async for _ in response.aiter_raw():
                pass


async def test_generate_over_grpc(replica: ReplicaProcess) -> None:
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(
            request_id="mine-7",
            chat=inference_pb2.Chat(
                messages=[inference_pb2.ChatMessage(role="user", content=CHAT[0]["content"])]
            ),
            sampling=inference_pb2.Sampling(temperature=0),
            stopping=inference_pb2.Stopping(max_tokens=20),
        )
        call = stub.Generate(request)
        responses = [response async for response in call]
        metadata = dict(await call.initial_metadata())
    assert "".join(response.text for response in responses) == "The capital of France is Paris."
    assert {response.request_id for response in responses} == {"mine-7"}
    assert responses[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    assert responses[-1].usage.prompt_tokens == 37
    tokens = [token for response in responses for token in response.token_ids]
    assert responses[-1].usage.output_tokens == len(tokens)
    assert not any(response.HasField("usage") for response in responses[:-1])
    assert metadata["x-fastgen-replica"] == "replica-under-test"
    assert metadata["x-request-id"] == "mine-7"
    assert metadata["x-fastgen-prompt-tokens"] == "37"


async def test_grpc_metadata_leaves_with_the_first_token(replica: ReplicaProcess) -> None:
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        before = replica.metric("fastgen_prompt_tokens_total")
        request = inference_pb2.GenerateRequest(text="north south east " * 300)
        request.stopping.max_tokens = 2
        call = stub.Generate(request)
        prompt_tokens = int(dict(await call.initial_metadata())["x-fastgen-prompt-tokens"])
        assert replica.metric("fastgen_prompt_tokens_total") - before == prompt_tokens > 800
        assert len([response async for response in call]) >= 1


async def test_health_and_reflection_over_grpc(replica: ReplicaProcess) -> None:
    async with replica.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    with grpc.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as plain:
        database = ProtoReflectionDescriptorDatabase(plain)
        assert SERVICE in database.get_services()
        service = DescriptorPool(database).FindServiceByName(SERVICE)
        assert [method.name for method in service.methods] == ["Generate", "GetLoad"]


async def test_load_tells_what_is_open(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        stream = await client.completions.create(
            model=MODEL, prompt="Once", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        load = replica.load()
        await stream.close()
    assert load.model == MODEL
    assert load.running_requests == 1
    assert load.max_concurrent_requests == 24
    assert load.free_blocks < load.total_blocks
    assert load.block_size == 16
    assert load.tokens_per_second > 0
    assert not load.draining


async def test_mixed_requests_say_what_they_say_alone(replica: ReplicaProcess) -> None:
    prompts = [
        "The capital of France is",
        "1, 2, 3, 4,",
        "Once upon a time, in a small village by the sea, " * 12,
        "def fibonacci(n):",
        "Water boils at",
        "The quick brown fox " * 40,
    ]
    async with replica.openai() as client:

        async def say(prompt: str) -> str:
            stream = await client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=16, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        alone = [await say(prompt) for prompt in prompts]
        together = await asyncio.gather(*(say(prompt) for prompt in prompts * 3))
    assert together == alone * 3


async def test_more_requests_than_places_all_get_their_tokens(replica: ReplicaProcess) -> None:
    """24 run and 24 wait; with 60 open the last are told to go elsewhere, the others end well."""
    async with replica.openai() as client:

        async def count(number: int) -> str:
            try:
                answer = await client.completions.create(
                    model=MODEL,
                    prompt=f"Count from {number}",
                    max_tokens=4,
                    extra_body={"ignore_eos": True},
                )
            except openai.RateLimitError as error:
                return f"{error.code}, retry after {error.response.headers['retry-after']}"
            return str(answer.usage.completion_tokens if answer.usage else 0)

        results = await asyncio.gather(*map(count, range(60)))
    assert sorted(results) == ["4"] * 48 + ["replica_full, retry after 1"] * 12


async def test_metrics_count_tokens_and_requests(replica: ReplicaProcess) -> None:
    def numbers() -> tuple[float, ...]:
        return (
            replica.metric("fastgen_prompt_tokens_total", deployment="", deployment_namespace=""),
            replica.metric("fastgen_output_tokens_total"),
            replica.metric("fastgen_requests_total", outcome="good"),
            replica.metric("fastgen_requests_total", outcome="excluded"),
            replica.metric("fastgen_time_to_first_token_seconds_count"),
            replica.metric("fastgen_time_per_output_token_seconds_count"),
        )

    before = numbers()
    async with replica.openai() as client:
        await client.completions.create(
            model=MODEL, prompt=[1, 2, 3, 4, 5], max_tokens=6, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=MODEL, prompt="x", temperature=3)
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=MODEL, prompt="x", extra_body={"what": 3})
    changes = [now - then for now, then in zip(numbers(), before, strict=True)]
    assert changes == [5, 6, 1, 2, 1, 1]


async def test_answers_are_logged_nowhere(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        await client.completions.create(model=MODEL, prompt="unmistakable", max_tokens=4)
    assert "unmistakable" not in json.dumps(replica.events())
