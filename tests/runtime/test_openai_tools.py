"""Calls of tools with the `openai` client: SmolLM2 with a chat template that knows tools."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageToolCallUnion
from pydantic import BaseModel, Field
from replica_process import MODEL, ReplicaProcess, running_replica

from fastgen_runtime.models.checkpoint import open_checkpoint

TEMPLATE = """\
{% if tools %}<|im_start|>system
{{ tools | tojson }}
Call with <tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHAT: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


class GetWeather(BaseModel):
    """Tells the weather of a city."""

    city: str = Field(max_length=12)
    days: int = Field(ge=1, le=9)


class Stop(BaseModel):
    """Stops."""


TOOLS: list[Any] = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(Stop)]


@pytest.fixture(scope="module")
def replica(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaProcess]:
    """The model's file with another template of the same length."""
    old = open_checkpoint(smollm2_path).chat_template_text
    assert old is not None
    new = TEMPLATE.ljust(len(old.encode())).encode()
    directory = tmp_path_factory.mktemp("tools")
    model = directory / "model.gguf"
    data = smollm2_path.read_bytes()
    assert len(new) == len(old.encode())
    model.write_bytes(data.replace(old.encode(), new, 1))
    with running_replica(model, directory, "--max-model-length=1024", "--kv-block-size=16") as one:
        yield one
    model.unlink()


def check_calls(calls: list[ChatCompletionMessageToolCallUnion] | None, count: int) -> None:
    assert calls is not None
    assert len(calls) == count
    for call in calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        if call.function.name == "GetWeather":
            GetWeather.model_validate_json(call.function.arguments)
        else:
            assert (call.function.name, call.function.arguments) == ("Stop", "{}")


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("required", None),
        ({"type": "function", "function": {"name": "GetWeather"}}, "GetWeather"),
    ],
)
async def test_a_call_that_must_be_is_right_whole_and_streamed(
    replica: ReplicaProcess, choice: Any, name: str | None
) -> None:
    options: Any = {"model": MODEL, "messages": CHAT, "tools": TOOLS, "tool_choice": choice,
                    "parallel_tool_calls": False, "seed": 1, "max_tokens": 100}  # fmt: skip
    async with replica.openai() as client:
        whole = await client.chat.completions.create(**options)
        async with client.chat.completions.stream(**options) as stream:
            pieces = [event async for event in stream if event.type == "chunk"]
            streamed = (await stream.get_final_completion()).choices[0]
    for answer in (whole.choices[0], streamed):
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        check_calls(answer.message.tool_calls, 1)
        assert name in (None, answer.message.tool_calls[0].function.name)
    assert len(pieces) > 2


async def test_a_parsed_call(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        parsed = await client.chat.completions.parse(
            model=MODEL, messages=CHAT, tools=TOOLS[:1], tool_choice="required", max_tokens=200,
            parallel_tool_calls=False,
        )  # fmt: skip
    assert parsed.choices[0].message.tool_calls is not None
    call = parsed.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, GetWeather)


async def test_choices_have_their_own_calls(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=CHAT, tools=TOOLS, tool_choice="required", n=3, seed=2,
            parallel_tool_calls=False, max_tokens=100,
        )  # fmt: skip
    for choice in answer.choices:
        check_calls(choice.message.tool_calls, 1)


async def test_the_model_may_answer_and_results_go_back(replica: ReplicaProcess) -> None:
    function = {"name": "GetWeather", "arguments": '{"city": "Paris", "days": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages: list[Any] = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny <|im_end|>"},
    ]
    plain: list[Any] = [{"type": "function", "function": {"name": "GetWeather"}}]
    async with replica.openai() as client:
        for tools, choice in ((TOOLS, "auto"), (plain, "auto"), (TOOLS, "none")):
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, tools=tools, tool_choice=choice, max_tokens=20,
                temperature=0,
            )  # fmt: skip
            message = answer.choices[0].message
            assert message.content or message.tool_calls
            assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


async def test_tools_or_json_after_a_schema(replica: ReplicaProcess) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with replica.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=CHAT, tools=TOOLS, parallel_tool_calls=False,
            response_format=form, max_tokens=100, seed=3,
        )  # fmt: skip
    message = answer.choices[0].message
    if message.tool_calls:
        check_calls(message.tool_calls, 1)
    else:
        assert json.loads(message.content or "").keys() == {"ok"}


async def test_a_schema_that_cannot_be_used_is_named(replica: ReplicaProcess) -> None:
    tools: list[Any] = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}
    ]
    async with replica.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model=MODEL, messages=CHAT, tools=tools, tool_choice="required"
            )
    assert refused.value.param == "tools"
