"""The `openai` client against a running replica: forms, not wisdom, since the model is small."""

import asyncio
import json
import math
from typing import Any

import httpx2
import openai
import pytest
from replica_process import MODEL, ReplicaProcess

CHAT: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
FRANCE = "The capital of France is"
FRANCE_IDS = [504, 3575, 282, 4649, 314]


async def test_choices_differ_and_come_back_with_their_seed(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:

        async def say() -> list[str]:
            answer = await client.chat.completions.create(
                model=MODEL, messages=CHAT, n=3, seed=5, max_tokens=8, temperature=1.5
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens <= 24
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
            return [choice.message.content or "" for choice in answer.choices]

        first = await say()
        assert len(set(first)) > 1
        assert await say() == first
        stream = await client.chat.completions.create(
            model=MODEL, messages=CHAT, n=3, seed=5, max_tokens=8, temperature=1.5, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        texts, reasons, usages = [""] * 3, [""] * 3, []
        async for chunk in stream:
            usages += [chunk.usage] if chunk.usage is not None else []
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] += choice.finish_reason or ""
    assert texts == first
    assert set(reasons) <= {"stop", "length"}
    assert len(usages) == 1
    assert usages[0].prompt_tokens == 37


async def test_log_probabilities_of_a_chat(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        options: Any = {"model": MODEL, "messages": CHAT, "max_tokens": 4, "temperature": 0,
                        "logprobs": True, "top_logprobs": 3}  # fmt: skip
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(stream=True, **options)
        chunks = [chunk.choices[0] async for chunk in stream]
    (choice,) = whole.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert "".join(token.token for token in content) == choice.message.content
    for token in content:
        assert bytes(token.bytes or []).decode() == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-6
    told = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or []]
    assert [token.token for token in told] == [token.token for token in content]


async def test_an_evaluation_harness_gets_its_prompts_log_probabilities(
    replica: ReplicaProcess,
) -> None:
    """As lm-eval's local-completions asks: token ids in a list, echo, and hardly any output."""
    async with replica.openai() as client:
        options: Any = {"model": MODEL, "echo": True, "logprobs": 1, "temperature": 0}
        none = await client.completions.create(prompt=[FRANCE_IDS], max_tokens=0, **options)
        one = await client.completions.create(
            prompt=[FRANCE_IDS, FRANCE_IDS[:3]], max_tokens=1, **options
        )
        text = await client.completions.create(prompt=FRANCE, max_tokens=0, **options)
    assert none.choices[0].text == text.choices[0].text == FRANCE
    assert none.choices[0].finish_reason == "length"
    assert none.usage is not None
    assert (none.usage.prompt_tokens, none.usage.completion_tokens) == (5, 0)
    logprobs, longer = none.choices[0].logprobs, one.choices[0].logprobs
    assert logprobs is not None
    assert longer is not None
    assert logprobs.tokens == ["The", " capital", " of", " France", " is"]
    assert logprobs.text_offset == [0, 3, 11, 14, 21]
    assert logprobs.token_logprobs is not None
    assert longer.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(-30 < logprob < 0 for logprob in logprobs.token_logprobs[1:])
    assert longer.token_logprobs[1:5] == pytest.approx(logprobs.token_logprobs[1:], abs=1e-3)
    assert len(longer.token_logprobs) == 6
    assert longer.top_logprobs is not None
    for token, top in zip((longer.tokens or [])[1:], longer.top_logprobs[1:], strict=True):
        assert token in top
        assert len(top) <= 2
    assert one.choices[1].text.startswith("The capital of")


async def test_lists_of_prompts_keep_their_order(replica: ReplicaProcess) -> None:
    prompts = [FRANCE, "1, 2, 3, 4,", "Water boils at"]
    options: Any = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    async with replica.openai() as client:
        alone = [
            (await client.completions.create(prompt=prompt, **options)).choices[0].text
            for prompt in prompts
        ]
        answer = await client.completions.create(prompt=prompts, n=2, **options)
        stream = await client.completions.create(
            prompt=prompts, n=2, stream=True, stream_options={"include_usage": True}, **options
        )
        texts, usage = [""] * 6, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        with pytest.raises(openai.BadRequestError, match=r"prompt\[1\] is empty") as refused:
            await client.completions.create(prompt=[FRANCE, ""], **options)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [text for text in alone for _ in range(2)]
    assert texts == [choice.text for choice in answer.choices]
    assert refused.value.param == "prompt[1]"
    assert usage is not None
    assert answer.usage is not None
    assert usage.completion_tokens == answer.usage.completion_tokens == 30
    assert usage.prompt_tokens == answer.usage.prompt_tokens


async def test_more_prompts_than_places(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        answer = await client.completions.create(
            model=MODEL, prompt=[[500 + number] for number in range(60)], max_tokens=1
        )
    assert len(answer.choices) == 60


async def test_a_client_that_leaves_frees_every_choice_of_every_prompt(
    replica: ReplicaProcess,
) -> None:
    body = {"prompt": ["Once", "Twice", "Thrice"], "n": 2, "max_tokens": 900, "stream": True,
            "ignore_eos": True}  # fmt: skip
    excluded = replica.metric("fastgen_requests_total", outcome="excluded")
    async with (
        httpx2.AsyncClient(base_url=replica.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert "x-fastgen-prompt-tokens" not in response.headers
        seen: set[int] = set()
        async for line in response.aiter_lines():
            if line:
                chunk = json.loads(line.removeprefix("data: "))
                seen |= {choice["index"] for choice in chunk["choices"]}
            if len(seen) == 6:
                break
        assert replica.load().running_requests == 6
    for _ in range(200):
        if replica.metric("fastgen_requests_total", outcome="excluded") == excluded + 1:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the request was not given up")
    assert [line["choices"] for line in replica.events() if line.get("end") == "cancelled"][-1] == 6


async def test_stops_and_token_ids(replica: ReplicaProcess) -> None:
    options: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    async with replica.openai() as client:
        plain = await client.completions.create(
            prompt=FRANCE, extra_body={"return_token_ids": True}, **options
        )
        ids = plain.choices[0].model_extra["token_ids"]
        assert len(ids) == 8
        assert plain.choices[0].model_extra["prompt_token_ids"] == FRANCE_IDS
        stopped = await client.completions.create(
            prompt=FRANCE_IDS, extra_body={"stop_token_ids": [ids[2]], "min_tokens": 1}, **options
        )
        biased = await client.completions.create(
            prompt=FRANCE, logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True},
            **options,
        )  # fmt: skip
        string = await client.completions.create(prompt=FRANCE, stop="aris", **options)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra["stop_reason"] == ids[2]
    assert plain.choices[0].text.startswith(stopped.choices[0].text)
    assert ids[0] not in biased.choices[0].model_extra["token_ids"]
    assert string.choices[0].model_extra["stop_reason"] == "aris"


async def test_log_probabilities_of_a_chats_prompt(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=CHAT, max_tokens=1,
            extra_body={"prompt_logprobs": 2, "return_token_ids": True},
        )  # fmt: skip
    extra = answer.model_extra
    assert extra is not None
    assert len(extra["prompt_logprobs"]) == len(extra["prompt_token_ids"]) == 37
    first, *others = extra["prompt_logprobs"]
    assert first is None
    for token_id, entries in zip(extra["prompt_token_ids"][1:], others, strict=True):
        assert str(token_id) in entries
        assert 2 <= len(entries) <= 3
    assert len(answer.choices[0].model_extra["token_ids"]) == 1


async def test_usage_with_every_chunk(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        stream = await client.completions.create(
            model=MODEL, prompt=FRANCE, max_tokens=4, temperature=0, stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )  # fmt: skip
        counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert len(counts) >= 2


async def test_a_cached_prompt_is_told(replica: ReplicaProcess) -> None:
    prompt = "Tell me about the sea, the sky and the land between them. " * 8
    async with replica.openai() as client:
        for _ in range(2):
            answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert 0 < answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens
    assert answer.system_fingerprint


async def test_a_final_message_is_continued(replica: ReplicaProcess) -> None:
    messages: list[Any] = [*CHAT, {"role": "assistant", "content": "The capital of"}]
    async with replica.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4, temperature=0,
            extra_body={"continue_final_message": True},
        )  # fmt: skip
    assert (answer.choices[0].message.content or "").startswith(" France is")


async def test_tools_are_refused_with_the_reason(replica: ReplicaProcess) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "f"}}]
    async with replica.openai() as client:
        with pytest.raises(openai.BadRequestError, match="chat template knows no tools") as refused:
            await client.chat.completions.create(model=MODEL, messages=CHAT, tools=tools)
    assert refused.value.param == "tools"


async def test_tokenize_and_back(replica: ReplicaProcess) -> None:
    async with httpx2.AsyncClient(base_url=replica.url, timeout=30) as client:

        async def post(path: str, **body: Any) -> Any:
            return (await client.post(path, json=body)).json()

        tokens = await post("/tokenize", prompt=FRANCE, return_token_strs=True)
        plain = await post("/tokenize", model=MODEL, prompt=FRANCE, add_special_tokens=False)
        chat = await post("/tokenize", messages=CHAT, add_generation_prompt=False)
        text = await post("/detokenize", tokens=chat["tokens"])
        errors = [
            await post("/tokenize", prompt="a", messages=[]),
            await post("/tokenize"),
            await post("/tokenize", prompt=""),
            await post("/tokenize", prompt="x " * 300_000),
            await post("/tokenize", prompt="x", what=1),
            await post("/detokenize", tokens=[49_152]),
            await post("/detokenize", tokens=[1], model="other"),
        ]
        version = (await client.get("/version")).json()
    assert tokens == {
        "count": 5,
        "max_model_len": 1024,
        "tokens": FRANCE_IDS,
        "token_strs": ["The", " capital", " of", " France", " is"],
    }
    assert plain == tokens | {"token_strs": None}
    assert text["prompt"].endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n")
    assert [answer["error"]["param"] for answer in errors] == [
        "prompt", "prompt", "prompt", "prompt", "what", "tokens", "model",
    ]  # fmt: skip
    assert version["version"]
