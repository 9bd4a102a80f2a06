"""What a gRPC client can ask for, on a replica that runs."""

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from replica_process import ReplicaProcess

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

Request = inference_pb2.GenerateRequest
Response = inference_pb2.GenerateResponse
Sampling, Stopping = inference_pb2.Sampling, inference_pb2.Stopping
Output = inference_pb2.Output
Stub = inference_pb2_grpc.InferenceServiceStub
PROMPT = "The capital of France is"
GREEDY = Sampling(temperature=0)
ENDLESS = {"text": "Once", "stopping": Stopping(max_tokens=900, ignore_eos=True)}
PLACES = 48
"""24 run and as many wait."""


async def ask(stub: Stub, **fields: Any) -> list[Response]:
    return [response async for response in stub.Generate(Request(**fields))]


def text_of(responses: list[Response], index: int = 0) -> str:
    return "".join(one.text for one in responses if one.index == index)


def tokens_of(responses: list[Response], index: int = 0) -> list[int]:
    return [token for one in responses if one.index == index for token in one.token_ids]


@asynccontextmanager
async def client(replica: ReplicaProcess) -> AsyncIterator[Stub]:
    async with replica.channel() as channel:
        yield Stub(channel)


def num_open(replica: ReplicaProcess) -> int:
    load = replica.load()
    return load.running_requests + load.waiting_requests


async def wait_for_open(replica: ReplicaProcess, count: int) -> None:
    deadline = time.monotonic() + 10
    while num_open(replica) != count:
        assert time.monotonic() < deadline, f"{num_open(replica)} requests are open"
        await asyncio.sleep(0.01)


async def test_choices_are_told_apart_and_the_first_is_the_only_one_of_one(
    replica: ReplicaProcess,
) -> None:
    stopping = Stopping(max_tokens=8, ignore_eos=True)
    async with client(replica) as stub:
        one = await ask(stub, text=PROMPT, sampling=Sampling(seed=7), stopping=stopping)
        three = await ask(stub, text=PROMPT, sampling=Sampling(seed=7, n=3), stopping=stopping)
        again = await ask(stub, text=PROMPT, sampling=Sampling(seed=7, n=3), stopping=stopping)
    assert tokens_of(three) == tokens_of(one)
    choices = [tokens_of(three, index) for index in range(3)]
    assert [len(choice) for choice in choices] == [8, 8, 8]
    assert len(set(map(tuple, choices))) == 3
    assert choices == [tokens_of(again, index) for index in range(3)]
    ends = [answer for answer in three if answer.finish_reason]
    assert sorted(answer.index for answer in ends) == [0, 1, 2]
    assert [answer.HasField("usage") for answer in three] == [False] * (len(three) - 1) + [True]
    assert three[-1].usage.prompt_tokens == one[-1].usage.prompt_tokens == 5
    assert three[-1].usage.output_tokens == 24


async def test_log_probabilities_of_output_and_prompt(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        answer = await ask(
            stub, text=PROMPT, sampling=GREEDY, stopping=Stopping(max_tokens=6, stop=["zzz"]),
            output=Output(logprobs=3, prompt_logprobs=2),
        )  # fmt: skip
        plain = await ask(stub, text=PROMPT, sampling=GREEDY, stopping=Stopping(max_tokens=6))
    assert tokens_of(answer) == tokens_of(plain)
    for response in answer:
        assert [one.token_id for one in response.logprobs] == list(response.token_ids)
    told = [one for response in answer for one in response.logprobs]
    assert len(told) == 6
    for one in told:
        assert one.rank == 1
        assert one.top[0].token_id == one.token_id
        assert one.top[0].logprob == one.logprob
        logprobs = [top.logprob for top in one.top]
        assert len(logprobs) == 3
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) <= 1 + 1e-5
    prompt = list(answer[0].prompt_logprobs)
    assert len(prompt) == answer[-1].usage.prompt_tokens - 1
    assert all(len(one.top) == 2 and one.logprob <= 0 for one in prompt)
    assert not any(response.prompt_logprobs for response in answer[1:])
    assert not any(response.logprobs for response in plain)


async def test_every_choice_tells_the_prompts_log_probabilities(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        answer = await ask(
            stub, text=PROMPT, sampling=Sampling(n=3), stopping=Stopping(max_tokens=2),
            output=Output(prompt_logprobs=0, echo=True),
        )  # fmt: skip
    for index in range(3):
        first = next(one for one in answer if one.index == index)
        assert len(first.prompt_logprobs) == 4
        assert first.text.startswith(PROMPT)


async def test_a_prompt_alone_is_scored(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        (answer,) = await ask(
            stub, text=PROMPT, stopping=Stopping(max_tokens=0),
            output=Output(prompt_logprobs=0, echo=True),
        )  # fmt: skip
        greedy = await ask(
            stub, text=PROMPT, sampling=GREEDY, stopping=Stopping(max_tokens=3),
            output=Output(logprobs=0),
        )  # fmt: skip
        (scored,) = await ask(
            stub, text=PROMPT + text_of(greedy), stopping=Stopping(max_tokens=0),
            output=Output(prompt_logprobs=0, echo=True),
        )  # fmt: skip
    assert answer.text == PROMPT
    assert list(answer.token_ids) == []
    assert answer.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (5, 0)
    assert len(answer.prompt_logprobs) == 4
    said = [one.logprob for response in greedy for one in response.logprobs]
    assert [one.logprob for one in scored.prompt_logprobs][-3:] == pytest.approx(said, abs=1e-4)


async def test_stop_tokens_and_least_numbers_of_tokens(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        plain = await ask(stub, text=PROMPT, sampling=GREEDY, stopping=Stopping(max_tokens=8))
        tokens = tokens_of(plain)
        stopping = Stopping(max_tokens=8, stop_token_ids=[tokens[2]])
        stopped = await ask(stub, text=PROMPT, sampling=GREEDY, stopping=stopping)
        stopping.min_tokens = 5
        later = await ask(stub, text=PROMPT, sampling=GREEDY, stopping=stopping)
        word = await ask(
            stub, text=PROMPT, sampling=GREEDY, stopping=Stopping(max_tokens=8, stop=["aris"])
        )
    assert tokens_of(stopped) == tokens[:3]
    assert stopped[-1].stop_token_id == tokens[2]
    assert stopped[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    assert tokens[2] not in tokens_of(later)[:5]
    assert len(tokens_of(later)) > 5
    assert plain[-1].WhichOneof("matched_stop") is None
    assert (text_of(word), word[-1].stop) == (" P", "aris")


async def test_biases_decide(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        stopping = Stopping(max_tokens=4)
        plain = await ask(stub, text=PROMPT, sampling=GREEDY, stopping=stopping)
        banned = Sampling(temperature=0, logit_bias={tokens_of(plain)[0]: -100})
        forced = Sampling(temperature=0, logit_bias={504: 100})
        without = await ask(stub, text=PROMPT, sampling=banned, stopping=stopping)
        only = await ask(stub, text=PROMPT, sampling=forced, stopping=stopping)
    assert tokens_of(plain)[0] not in tokens_of(without)
    assert tokens_of(only) == [504] * 4


async def test_every_choice_follows_the_grammar(replica: ReplicaProcess) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "London"]}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    }
    async with client(replica) as stub:
        chosen = await ask(
            stub, text=PROMPT, sampling=Sampling(n=3, seed=3), json_schema=json.dumps(schema)
        )
        matched = await ask(stub, text=PROMPT, sampling=GREEDY, regex="[0-9]{3}-[a-z]{2}")
    for index in range(3):
        assert json.loads(text_of(chosen, index)).keys() == schema["properties"].keys()
    ends = [one for one in chosen if one.finish_reason]
    assert {one.finish_reason for one in ends} == {inference_pb2.FINISH_REASON_STOP}
    assert re.fullmatch("[0-9]{3}-[a-z]{2}", text_of(matched))


async def test_cached_tokens_are_told(replica: ReplicaProcess) -> None:
    stopping = Stopping(max_tokens=1)
    async with client(replica) as stub:
        text = "An unlikely beginning: " + "seven green lanterns, " * 20
        first = await ask(stub, text=text, stopping=stopping)
        second = await ask(stub, text=text, stopping=stopping)
    assert first[-1].usage.cached_tokens == 0
    assert 0 < second[-1].usage.cached_tokens < second[-1].usage.prompt_tokens


@pytest.mark.parametrize("num_choices", [1, 5])
async def test_a_cancelled_call_frees_every_choice(
    replica: ReplicaProcess, num_choices: int
) -> None:
    async with client(replica) as stub:
        call = stub.Generate(Request(sampling=Sampling(n=num_choices), **ENDLESS))
        await call.read()
        await wait_for_open(replica, num_choices)
        call.cancel()
        await wait_for_open(replica, 0)
    assert replica.is_idle()


async def test_a_deadline_ends_every_choice(replica: ReplicaProcess) -> None:
    async with client(replica) as stub:
        call = stub.Generate(Request(sampling=Sampling(n=5), **ENDLESS), timeout=0.7)
        with pytest.raises(grpc.aio.AioRpcError) as passed:
            _ = [response async for response in call]
        assert passed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await wait_for_open(replica, 0)
    assert replica.is_idle()


async def test_a_full_queue_refuses_and_a_more_important_request_goes_first(
    replica: ReplicaProcess,
) -> None:
    async with client(replica) as stub:
        running = [stub.Generate(Request(**ENDLESS)) for _ in range(24)]
        await asyncio.gather(*(call.read() for call in running))
        waiting = [stub.Generate(Request(priority=5, **ENDLESS)) for _ in range(22)]
        await wait_for_open(replica, PLACES - 2)
        urgent = stub.Generate(Request(priority=-1, **ENDLESS))
        await wait_for_open(replica, PLACES - 1)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await ask(stub, sampling=Sampling(n=2), text="x")
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as never:
            await ask(stub, sampling=Sampling(n=PLACES + 1), text="x")
        assert never.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (never.value.details() or "").startswith("n is 49")
        reads = {asyncio.ensure_future(call.read()): call for call in (urgent, *waiting)}
        running[5].cancel()
        done, others = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert urgent in {reads[read] for read in done}
        for read in others:
            read.cancel()
        for call in (*running, *waiting, urgent):
            call.cancel()
        await wait_for_open(replica, 0)
