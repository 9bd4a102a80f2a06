"""Answers that must match something, with the `openai` client."""

import json
from enum import StrEnum
from typing import Annotated, Any

import openai
import pytest
from pydantic import BaseModel, Field
from replica_process import MODEL, ReplicaProcess


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    colour: Colour
    weight: Annotated[int, Field(ge=0, le=99)] | None


class Thing(BaseModel):
    name: str = Field(max_length=20)
    parts: list[Part] = Field(max_length=2)


async def test_answers_after_a_pydantic_model(replica: ReplicaProcess) -> None:
    messages: list[Any] = [{"role": "user", "content": "Describe a car with one part as JSON."}]
    async with replica.openai() as client:
        parsed = await client.chat.completions.parse(
            model=MODEL, messages=messages, response_format=Thing, temperature=0,
            max_tokens=200, frequency_penalty=0.5,
        )  # fmt: skip
        streamed = ""
        async with client.chat.completions.stream(
            model=MODEL, messages=messages, response_format=Thing, temperature=0, max_tokens=200,
            frequency_penalty=0.5,
        ) as stream:  # fmt: skip
            async for event in stream:
                if event.type == "content.delta":
                    streamed += event.delta
    assert parsed.choices[0].finish_reason == "stop"
    assert isinstance(parsed.choices[0].message.parsed, Thing)
    assert streamed == parsed.choices[0].message.content


@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-c]"}}, lambda text: len(text) == 5),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"grammar": 'start: "<" /[a-z]{2}/ ">"'}},
         lambda text: text[0] + text[3:] == "<>"),
    ],
)  # fmt: skip
async def test_other_constraints(replica: ReplicaProcess, constraint: Any, check: Any) -> None:
    async with replica.openai() as client:
        answer = await client.completions.create(
            model=MODEL, prompt="Answer:", max_tokens=60, extra_body=constraint, seed=1,
            temperature=0.5, frequency_penalty=1,
        )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop", answer.choices[0].text
    assert check(answer.choices[0].text), answer.choices[0].text


async def test_answers_that_are_any_json_object(replica: ReplicaProcess) -> None:
    ask = 'Reply with the JSON object {"ok": true} and nothing else.'
    async with replica.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": ask}], max_tokens=60, temperature=0,
            response_format={"type": "json_object"},
        )  # fmt: skip
    choice = answer.choices[0]
    assert choice.finish_reason == "stop", choice.message.content
    assert isinstance(json.loads(choice.message.content or ""), dict)


async def test_constraints_that_cannot_be_used_are_named(replica: ReplicaProcess) -> None:
    async with replica.openai() as client:
        for constraint in ({"regex": "(unclosed"}, {"grammar": "no rules"}, {"json": {"type": 5}}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(
                    model=MODEL, prompt="x", extra_body={"structured_outputs": constraint}
                )
            assert refused.value.param == f"structured_outputs.{next(iter(constraint))}"
            assert refused.value.body is not None
