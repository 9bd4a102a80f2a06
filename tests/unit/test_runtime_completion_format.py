"""The chunks of OpenAI's streams."""

import json
from typing import Any

from fastgen_runtime.answer import Delta, Usage
from fastgen_runtime.completion_format import ResponseFormat
from fastgen_runtime.request import FinishReason


def parse(events: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in events.decode().strip().split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_stream_names_the_role_first_and_the_reason_last() -> None:
    form = ResponseFormat(True, "id", "m", 1, with_usage=True)
    (first,) = parse(form.events(Delta("", (1,)), is_first=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert form.events(Delta("", (1,)), is_first=False) == b""
    end = Delta("bye", (2,), FinishReason.LENGTH, Usage(3, 2))
    text, finish, usage, done = parse(form.events(end, is_first=False))
    assert text["choices"][0]["delta"] == {"content": "bye"}
    assert text["choices"][0]["finish_reason"] is None
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "length"
    assert finish["usage"] is None
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert done == "[DONE]"


def test_a_stream_without_usage_has_none() -> None:
    form = ResponseFormat(False, "id", "m", 1)
    end = Delta("all", (2,), FinishReason.STOP, Usage(3, 1))
    text, finish, done = parse(form.events(end, is_first=True))
    assert text["choices"][0]["text"] == "all"
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in text
    assert done == "[DONE]"
