"""One balancer, several models: the real Envoy sends each request to the model that it names."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from balancer_process import Balancer, prompt_of
from gateway import http_address, running
from gateway_config import Gateway
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from small_replica import Replica, replica_process, serving

from fastgen_api.names import Header, Metric
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance, picking


async def ask(
    http: httpx2.AsyncClient,
    balancer: Balancer,
    model: Any = None,
    prompt: str = "",
    max_tokens: int = 1,
    **headers: str,
) -> httpx2.Response:
    """A completion of a model, read to its end; `headers` with `_` for `-`."""
    body = {"prompt": prompt, "max_tokens": max_tokens} | ({"model": model} if model else {})
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return await http.post(f"{balancer.url}/v1/completions", json=body, headers=named)


async def call(
    balancer: Balancer, model: str, prompt: str = "", max_tokens: int = 1, **metadata: str
) -> tuple[str, list[str]]:
    """A Generate call: who has answered, and the texts."""
    request = prompt_of(prompt, max_tokens)
    request.model = model
    pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        answer = stub.Generate(request, metadata=pairs)
        texts = [message.text async for message in answer]
        headers = dict(await answer.initial_metadata())
        return str(headers[Header.REPLICA]), texts


@asynccontextmanager
async def sharing(
    balance: Balance, chat: Replica, batch: Replica, *arguments: str
) -> AsyncIterator[Balancer]:
    """A balancer of the models `chat` and `batch`, a replica each."""
    async with (
        serving(chat) as a,
        serving(batch) as b,
        balance(f"chat={a}", f"batch={b}", arguments=arguments) as balancer,
    ):
        yield balancer


async def test_the_model_chooses(balance: Balance, http: httpx2.AsyncClient) -> None:
    chat, batch = Replica("one"), Replica("two")
    async with sharing(balance, chat, batch) as balancer:
        for model, replica in (("chat", "one"), ("batch", "two")) * 3:
            response = await ask(http, balancer, model, "x" * 2_000_000)
            assert (response.status_code, response.headers[Header.REPLICA]) == (200, replica)
            assert await call(balancer, model, max_tokens=2) == (replica, ["w0 ", "w1 "])
        assert all(seen[Header.MODEL_JUDGED] == "1" for seen in chat.seen + batch.seen)
        assert all(Header.DEPLOYMENT not in seen for seen in chat.seen + batch.seen)
        for model in ("chat", "batch"):
            assert await balancer.metric(Metric.PICKS, deployment=model, result="picked") == 6


async def test_the_header_names_the_deployment(balance: Balance, http: httpx2.AsyncClient) -> None:
    """For clients that cannot set the model, or set one that is not ours."""
    async with sharing(balance, Replica("one"), Replica("two")) as balancer:
        for model in (None, "gpt-4", "chat"):
            response = await ask(http, balancer, model, x_fastgen_model="batch")
            assert response.headers[Header.REPLICA] == "two"
        assert (await call(balancer, "", x_fastgen_model="chat"))[0] == "one"
        unknown = await ask(http, balancer, "chat", x_fastgen_model="none")
        assert unknown.status_code == 404
        assert "'chat', 'batch'" in unknown.json()["error"]["message"]


@pytest.mark.parametrize(
    ("model", "status", "code", "grpc_status"),
    [
        ("none", 404, "model_not_found", grpc.StatusCode.NOT_FOUND),
        (None, 400, "model_missing", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_request_for_no_model(
    balance: Balance,
    http: httpx2.AsyncClient,
    model: str | None,
    status: int,
    code: str,
    grpc_status: grpc.StatusCode,
) -> None:
    chat, batch = Replica("one"), Replica("two")
    async with sharing(balance, chat, batch) as balancer:
        response = await ask(http, balancer, model)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, code, "model")
        assert "'chat', 'batch'" in error["message"]
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call(balancer, model or "")
        assert failure.value.code() is grpc_status
        assert "'chat', 'batch'" in str(failure.value.details())
        for body in (b"{", b'{"model": 5}', b'["chat"]', b"\xff"):
            wrong = await http.post(f"{balancer.url}/v1/completions", content=body)
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "model_missing")
        assert not chat.seen + batch.seen
        assert await balancer.metric(Metric.REQUESTS) == 0, "no deployment's SLO is concerned"


async def test_the_models_are_listed(balance: Balance, http: httpx2.AsyncClient) -> None:
    chat, batch = Replica("one"), Replica("two")
    async with sharing(balance, chat, batch) as balancer:
        listed = (await http.get(f"{balancer.url}/v1/models")).json()
        assert listed["object"] == "list"
        assert [each["id"] for each in listed["data"]] == ["chat", "batch"]
        one = await http.get(f"{balancer.url}/v1/models/batch")
        assert one.headers["content-type"] == "application/json"
        assert one.json() == listed["data"][1]
        missing = await http.get(f"{balancer.url}/v1/models/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        head = await http.head(f"{balancer.url}/v1/models")
        assert (head.status_code, head.content) == (200, b"")


async def test_what_clients_may_not_say(balance: Balance, http: httpx2.AsyncClient) -> None:
    chat, batch = Replica("one"), Replica("two")
    async with sharing(balance, chat, batch) as balancer:
        lies = {"x_fastgen_deployment": "batch", "x_fastgen_model_judged": "1"}
        assert (await ask(http, balancer, "chat", **lies)).headers[Header.REPLICA] == "one"
        balancer.picker.kill()
        await balancer.picker.wait()
        assert (await ask(http, balancer, "chat", **lies)).status_code == 503
        assert not batch.seen


async def test_with_the_picker_gone_the_header_alone_leads_on(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    chat, batch = Replica("one"), Replica("two")
    async with sharing(balance, chat, batch) as balancer:
        balancer.picker.kill()
        await balancer.picker.wait()
        for deployment, replica in (("chat", "one"), ("batch", "two")) * 3:
            response = await ask(http, balancer, "whatever", x_fastgen_model=deployment)
            assert (response.status_code, response.headers[Header.REPLICA]) == (200, replica)
            assert (await call(balancer, "", x_fastgen_model=deployment))[0] == replica
        assert all(seen[Header.MODEL_JUDGED] == "1" for seen in chat.seen + batch.seen)
        for named in ({}, {"x_fastgen_model": "none"}):
            refused = await ask(http, balancer, "chat", **named)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "no_picker")
            assert Header.MODEL in error["message"]
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call(balancer, "chat", **named)
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
            assert Header.MODEL in str(failure.value.details())
        await balancer.start_picker()

        async def answers() -> bool:
            return (await ask(http, balancer, "chat")).status_code == 200

        await balancer.eventually(answers)


async def _steady(balancer: Balancer, model: str, seconds: float) -> list[float]:
    """How long each request of a stream of them took, sorted; all must succeed."""
    took, ends = [], time.monotonic() + seconds
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        while time.monotonic() < ends:
            began = time.monotonic()
            response = await ask(http, balancer, model)
            assert response.status_code == 200, response.text
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    return sorted(took)


@pytest.mark.parametrize("trouble", ["dead", "hung", "full"])
async def test_one_deployments_trouble_is_not_the_others(
    balance: Balance, http: httpx2.AsyncClient, trouble: str
) -> None:
    """Whoever waits for the bad one waits for 5 s and more; of the good one nobody does."""
    chat = Replica("one")
    async with serving(chat) as a, replica_process("bad") as (b, process):
        models = (f"chat={a}", f"batch={b}")
        limits = ("--max-queued-requests", "20", "--max-wait-seconds", "6")
        async with balance(*models, arguments=limits) as balancer:
            prompt, tokens = ("gap=1", 30) if trouble == "full" else ("", 1)
            if trouble == "dead":
                process.kill()
                await process.wait()
            elif trouble == "hung":
                process.send_signal(signal.SIGSTOP)
            # The bad one's 64 places and the queue, and some that are refused.
            load = [
                asyncio.create_task(ask(http, balancer, "batch", prompt, tokens)) for _ in range(95)
            ]
            took = await _steady(balancer, "chat", 4)
            assert took[int(len(took) * 0.99)] < 2
            good = {"deployment": "chat"}
            assert await balancer.metric(Metric.REQUESTS, **good) == 0
            assert await balancer.metric(Metric.EJECTIONS, **good) == 0
            assert await balancer.metric(Metric.PICKS, result="picked", **good) == len(took)
            assert await balancer.metric(Metric.PICKS, **good) == len(took)
            if trouble == "full":
                assert await balancer.metric(Metric.QUEUED_REQUESTS, deployment="batch") == 20
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)


async def test_a_full_queue_refuses_nobody_elses(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    chat, batch = Replica("one"), Replica("two", capacity=1)
    batch.extra_load = 1
    async with sharing(balance, chat, batch, "--max-queued-requests", "2") as balancer:

        async def is_full() -> bool:
            return await balancer.metric(Metric.QUEUED_REQUESTS, deployment="batch") == 2

        await asyncio.sleep(0.6)
        held = [asyncio.create_task(ask(http, balancer, "batch")) for _ in range(2)]
        await balancer.eventually(is_full)
        refused = await ask(http, balancer, "batch")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        for _ in range(5):
            assert (await ask(http, balancer, "chat")).status_code == 200
        assert await balancer.metric(Metric.QUEUED_REQUESTS, deployment="chat") == 0
        batch.extra_load = 0
        assert [each.status_code for each in await asyncio.gather(*held)] == [200, 200]


async def test_metrics_read_as_one_exposition(balance: Balance, http: httpx2.AsyncClient) -> None:
    async with sharing(balance, Replica("one"), Replica("two")) as balancer:
        await ask(http, balancer, "none")
        text = (await http.get(f"http://127.0.0.1:{balancer.http_port}/metrics")).text
        types = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(types) == len(set(types)) > 5
        assert await balancer.metric(Metric.PICKS, deployment="", result="unknown_model") == 1


async def test_reflection_needs_no_model(balance: Balance) -> None:
    one, two = Replica("one"), Replica("two")
    one.draining = True
    async with sharing(balance, one, two) as balancer:
        await asyncio.sleep(0.6)
        channel = await asyncio.to_thread(grpc.insecure_channel, f"127.0.0.1:{balancer.port}")
        with channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = await asyncio.to_thread(database.get_services)
        assert "fastgen.v1.InferenceService" in services


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_gateways_requests_choose_as_well(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path, mode: str
) -> None:
    """By model, by header, and among the subset that the gateway allows."""
    chat, batch, idle_one = Replica("one"), Replica("two"), Replica("three")
    async with (
        serving(chat) as a,
        serving(batch) as b,
        serving(idle_one) as c,
        picking(balance, f"chat={a}", f"batch={b}", f"batch={c}") as (balancer, port),
        running(Gateway(port, body_mode=mode, subset=[http_address(a), http_address(b)]), tmp_path)
        as gateway,
    ):  # fmt: skip
        url = f"{gateway.url}/v1"
        for model, replica in (("chat", "one"), ("batch", "two")) * 3:
            body = {"model": model, "prompt": "", "max_tokens": 1}
            response = await http.post(f"{url}/completions", json=body)
            assert (response.status_code, response.headers[Header.REPLICA]) == (200, replica)
        named = await http.post(f"{url}/completions", json=body, headers={Header.MODEL: "chat"})
        assert named.headers[Header.REPLICA] == "one"
        assert chat.seen[-1][Header.MODEL_JUDGED] == "1"
        wrong = await http.post(f"{url}/completions", json=body | {"model": "none"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        listed = await http.get(f"{url}/models")
        assert [each["id"] for each in listed.json()["data"]] == ["chat", "batch"]
        assert not idle_one.seen
        assert await balancer.metric(Metric.PICKS, deployment="batch", result="picked") == 3
