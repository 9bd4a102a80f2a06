"""Routes to other deployments, and members that come and go, through the real Envoy."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import pytest
from balancer_process import Balancer, prompt_of
from small_replica import Replica, serving

from fastgen_api.names import Header
from fastgen_api.sharing import Declared
from fastgen_api.spec import parse
from fastgen_api.v1 import inference_pb2_grpc
from fastgen_balancer.endpoints import parse_static
from fastgen_balancer.picker import Picker
from fastgen_balancer.roster import roster_of

from .conftest import balancing_here

BATCH = {"header": {"name": "x-fastgen-class", "value": "batch"}}
LONG = {"minPromptTokens": 1000}
IS_BATCH = {"x-fastgen-class": "batch"}
LONG_PROMPT = "word " * 4000


def declared(deployment: str, /, scaling: Any = None, **balancer: Any) -> Declared:
    spec = {"model": {"source": "file:///m"}, "balancer": balancer, "scaling": scaling or {}}
    return Declared(deployment, "2026-01-01T00:00:00Z", parse(spec))


def way(match: dict[str, Any], deployment: str) -> dict[str, Any]:
    return {"match": match, "deployment": deployment}


CHAT = declared("chat", routes=[way(BATCH, "batch"), way(LONG, "long")])


@asynccontextmanager
async def here(
    directory: Path, balancer: str, *all_: Declared, **replicas: Replica
) -> AsyncIterator[tuple[Balancer, Picker]]:
    """A balancer of these deployments, each with the replica of its name, where there is one."""
    async with (
        balancing_here(directory, roster_of(balancer, all_)) as (process, picker),
        replicas_of(picker, **replicas),
    ):
        yield process, picker


@asynccontextmanager
async def replicas_of(picker: Picker, **replicas: Replica) -> AsyncIterator[None]:
    if not replicas:
        yield
        return
    (name, replica), *others = replicas.items()
    async with serving(replica) as address:
        picker.members[name].set_endpoints((parse_static(address),))
        # Envoy has to read of them, too.
        await asyncio.sleep(0.5)
        async with replicas_of(picker, **dict(others)):
            yield


def client_of(balancer: Balancer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{balancer.url}/v1", api_key="none", max_retries=0, timeout=30
    )


async def served_by(
    client: openai.AsyncOpenAI, prompt: str = "", model: str = "chat", **headers: str
) -> str:
    """The replica that has answered."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    response = await client.completions.with_raw_response.create(
        model=model, prompt=prompt, max_tokens=1, stream=True, extra_headers=named
    )
    stream = response.parse()
    async for _ in stream:
        pass
    return str(response.headers[Header.REPLICA])


async def test_header_and_length_lead_to_other_deployments(tmp_path: Path) -> None:
    """The client goes on asking for the model that it knows."""
    replicas = {name: Replica(name) for name in ("chat", "batch", "long")}
    all_ = (CHAT, declared("batch"), declared("long"))
    async with here(tmp_path, "chat", *all_, **replicas) as (balancer, picker):
        async with client_of(balancer) as client:
            assert await served_by(client, "short") == "chat"
            assert await served_by(client, "short", x_fastgen_class="batch") == "batch"
            assert await served_by(client, LONG_PROMPT) == "long"
            assert await served_by(client, LONG_PROMPT, x_fastgen_class="batch") == "batch"
            # Whether there is such a model the member's replicas say.
            assert await served_by(client, LONG_PROMPT, model="none") == "chat"
        judged = {name: [Header.MODEL_JUDGED in seen for seen in each.seen]
                  for name, each in replicas.items()}  # fmt: skip
        assert judged == {"chat": [False, False], "batch": [True, True], "long": [True]}
        for name, picks in (("chat", 2), ("batch", 2), ("long", 1)):
            (registry,) = picker.members[name].registries()
            labels = {"deployment": name, "deployment_namespace": "ns", "result": "picked"}
            assert registry.get_sample_value("fastgen_balancer_picks_total", labels) == picks
        async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            answer = stub.Generate(prompt_of(LONG_PROMPT, 1))
            assert dict(await answer.initial_metadata())[Header.REPLICA] == "long"


async def test_a_route_to_what_is_not_there_leaves_the_request_where_it_is(tmp_path: Path) -> None:
    async with (
        here(tmp_path, "chat", CHAT, chat=Replica("chat")) as (balancer, picker),
        client_of(balancer) as client,
    ):
        assert await served_by(client, x_fastgen_class="batch") == "chat"
        picker.serve(roster_of("chat", (CHAT, declared("batch"))))
        async with replicas_of(picker, batch=Replica("batch")):
            assert await served_by(client, x_fastgen_class="batch") == "batch"
        picker.serve(roster_of("chat", (CHAT,)))
        for _ in range(5):
            assert await served_by(client, x_fastgen_class="batch") == "chat"


async def test_a_target_at_zero_is_waited_for_and_called_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    batch = declared("batch", scaling={"minReplicas": 0, "scaleToZero": {"holdSeconds": 60}})
    async with here(tmp_path, "chat", CHAT, batch, chat=Replica("chat")) as (balancer, picker):
        calls: list[str] = []
        picker.members["batch"].on_wait = lambda: calls.append("batch")
        picker.members["chat"].on_wait = lambda: calls.append("chat")
        async with client_of(balancer) as client:
            held = asyncio.create_task(served_by(client, x_fastgen_class="batch"))
            await balancer.eventually(lambda: picker.members["batch"].dispatcher.queued == 1)
            for _ in range(5):
                assert await served_by(client) == "chat"
            assert not held.done()
            assert (picker.load("batch").queued_requests, picker.load("chat").queued_requests) == (
                1,
                0,
            )
            assert calls == ["batch"]
            async with replicas_of(picker, batch=Replica("batch")):
                assert await asyncio.wait_for(held, 10) == "batch"


@pytest.mark.parametrize("goes", ["b", "a"])
async def test_who_leaves_breaks_no_stream_of_anybody(
    tmp_path: Path, http: httpx2.AsyncClient, goes: str
) -> None:
    """Its own that have begun go on, too, and then it is forgotten."""
    a, b = declared("a", name="x"), declared("b", name="x")
    stays = {"a": b, "b": a}[goes]
    replicas = {"a": Replica("a"), "b": Replica("b")}
    async with here(tmp_path, "x", a, b, **replicas) as (balancer, picker):
        body = {"prompt": "gap=0.2", "max_tokens": 15}

        async def stream(model: str) -> httpx2.Response:
            return await http.post(f"{balancer.url}/v1/completions", json=body | {"model": model})

        streams = [asyncio.create_task(stream(model)) for model in ("a", "b")]
        await balancer.eventually(lambda: all(each.running for each in replicas.values()))
        picker.serve(roster_of("x", (stays,)))
        gone = await http.post(f"{balancer.url}/v1/completions", json=body | {"model": goes})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        picker.sweep()
        assert goes in picker.members
        for response in await asyncio.gather(*streams):
            assert response.status_code == 200
            assert response.text.endswith("data: [DONE]\n\n")

        def is_forgotten() -> bool:
            picker.sweep()
            return goes not in picker.members

        await balancer.eventually(is_forgotten)
        assert not any(f".{goes}." in name for name in os.listdir(tmp_path))
        for _ in range(5):
            again = await http.post(
                f"{balancer.url}/v1/completions",
                json={"model": stays.name, "prompt": "", "max_tokens": 1},
            )
            assert again.status_code == 200


async def test_a_deployment_alone_is_joined_and_left_without_an_error(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    """Its own requests, which name its model, do not notice."""
    chat, other = declared("chat"), declared("other", name="chat")
    async with here(tmp_path, "chat", chat, chat=Replica("chat")) as (balancer, picker):
        done = False

        async def ask_on() -> list[int]:
            statuses = []
            while not done:
                body = {"model": "chat", "prompt": "", "max_tokens": 1}
                answer = await http.post(f"{balancer.url}/v1/completions", json=body)
                statuses.append(answer.status_code)
            return statuses

        asking = [asyncio.create_task(ask_on()) for _ in range(4)]
        for number in range(12):
            await asyncio.sleep(0.25)
            picker.serve(roster_of("chat", (chat, other) if number % 2 == 0 else (chat,)))
            picker.sweep()
        done = True
        statuses = [status for each in await asyncio.gather(*asking) for status in each]
        assert len(statuses) > 50
        assert set(statuses) == {200}
