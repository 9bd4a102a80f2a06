"""Every parameter of the pinned openai client is implemented, without effect, or refused by name.

A new version of the client with a new parameter fails here until somebody decides about it.
"""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions

from fastgen_runtime.front.generation import ChatPrompt, RequestError
from fastgen_runtime.protocols.asked import Asked, Origin
from fastgen_runtime.protocols.openai_chat import read_chat
from fastgen_runtime.protocols.openai_completion import read_completion
from fastgen_runtime.protocols.openai_fields import WITHOUT_EFFECT
from fastgen_runtime.text.tools.format import ModelTools, ToolFormat

HERMES = ModelTools(ToolFormat.HERMES, "", lambda text: None, frozenset())
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}

# A value that asks for something, and where it is to be seen afterwards.
IMPLEMENTED: dict[str, tuple[Any, Callable[[Asked], Any], Any]] = {
    "model": ("m", lambda asked: asked.generations[0].model, "m"),
    "temperature": (0.5, lambda asked: asked.generations[0].temperature, 0.5),
    "top_p": (0.5, lambda asked: asked.generations[0].top_p, 0.5),
    "frequency_penalty": (1, lambda asked: asked.generations[0].frequency_penalty, 1),
    "presence_penalty": (1, lambda asked: asked.generations[0].presence_penalty, 1),
    "logit_bias": ({"7": 5}, lambda asked: asked.generations[0].logit_bias, {7: 5.0}),
    "seed": (7, lambda asked: asked.generations[0].seed, 7),
    "n": (3, lambda asked: (asked.generations[0].num_choices, asked.told.num_choices), (3, 3)),
    "stop": (["a"], lambda asked: asked.generations[0].stop, ("a",)),
    "max_tokens": (5, lambda asked: asked.generations[0].max_tokens, 5),
    "stream": (True, lambda asked: asked.is_stream, True),
    "stream_options": ({"include_usage": True}, lambda asked: asked.told.with_usage, True),
}
IN_CHAT: dict[str, tuple[Any, Callable[[Asked], Any], Any]] = IMPLEMENTED | {
    "messages": (MESSAGES, lambda asked: len(_chat(asked).messages), 1),
    "max_completion_tokens": (5, lambda asked: asked.generations[0].max_tokens, 5),
    "logprobs": (True, lambda asked: asked.generations[0].num_logprobs, 0),
    "top_logprobs": (3, lambda asked: asked.generations[0].num_logprobs, 3),
    "response_format": (SCHEMA, lambda asked: asked.generations[0].grammar is None, False),
    "tools": (TOOLS, lambda asked: len(_chat(asked).tools), 1),
    "tool_choice": ("required", lambda asked: asked.generations[0].grammar is None, False),
    "parallel_tool_calls": (False, lambda asked: asked.generations[0].grammar is None, False),
}
IN_COMPLETIONS: dict[str, tuple[Any, Callable[[Asked], Any], Any]] = IMPLEMENTED | {
    "prompt": (["a", "b"], lambda asked: len(asked.generations), 2),
    "best_of": (1, lambda asked: asked.generations[0].num_choices, 1),
    "echo": (True, lambda asked: (asked.generations[0].echo, asked.told.is_echo), (True, True)),
    "logprobs": (2, lambda asked: asked.generations[0].num_logprobs, 2),
}
NEEDED = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
}
REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "high",
    "service_tier": "priority",
    "store": True,
    "suffix": "x",
    "verbosity": "low",
    "web_search_options": {},
}


def _chat(asked: Asked) -> ChatPrompt:
    prompt = asked.generations[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def read(is_chat: bool, **fields: Any) -> Asked:
    if is_chat:
        body = {"messages": MESSAGES} | fields
        return read_chat(json.dumps(body).encode(), Origin(), HERMES)
    return read_completion(json.dumps({"prompt": "Hi"} | fields).encode(), Origin())


def parameters(is_chat: bool) -> list[str]:
    create = ChatCompletions.create if is_chat else Completions.create
    return [name for name in inspect.signature(create).parameters if name not in OF_THE_CLIENT]


CASES = [(is_chat, name) for is_chat in (True, False) for name in parameters(is_chat)]


@pytest.mark.parametrize(("is_chat", "name"), CASES)
def test_every_parameter(is_chat: bool, name: str) -> None:
    implemented = IN_CHAT if is_chat else IN_COMPLETIONS
    assert (name in implemented) + (name in WITHOUT_EFFECT) + (name in REFUSED) == 1, name
    if name in implemented:
        value, seen, expected = implemented[name]
        assert seen(read(is_chat, **NEEDED.get(name, {}), **{name: value})) == expected
    elif name in WITHOUT_EFFECT:
        for value in ("x", {"a": "b"}):
            assert read(is_chat, **{name: value}) == read(is_chat)
    else:
        with pytest.raises(RequestError, match="not supported yet") as refused:
            read(is_chat, **{name: REFUSED[name]})
        assert refused.value.field == name
        assert read(is_chat, **{name: None}) == read(is_chat)


def test_the_tables_name_nothing_that_the_client_does_not_know() -> None:
    known = {name for _, name in CASES}
    assert {*IN_CHAT, *IN_COMPLETIONS, *REFUSED, *WITHOUT_EFFECT} == known
