"""OpenAI bodies, read and checked as the server does."""

import json
from typing import Any

from fastgen_runtime.front.generation import Generation, RequestError
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.protocols.asked import Asked, Origin
from fastgen_runtime.protocols.openai_chat import read_chat
from fastgen_runtime.protocols.openai_completion import read_completion
from fastgen_runtime.text.tools.format import ModelTools, ToolFormat

MESSAGES = [{"role": "user", "content": "Hi"}]
HERMES = ModelTools(ToolFormat.HERMES, "", lambda text: None, frozenset())
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BROKEN_CALL = CALL | {"function": {"name": "f", "arguments": "[1]"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def checked(asked: Asked) -> Asked:
    """As the server does, fields called as in the body."""
    for generation in asked.generations:
        try:
            check(generation)
        except RequestError as error:
            raise asked.named(error) from error
    return asked


def ask_chat(model: ModelTools = HERMES, **fields: Any) -> Asked:
    body = json.dumps({"messages": MESSAGES} | fields).encode()
    return checked(read_chat(body, Origin(), model))


def ask_completion(**fields: Any) -> Asked:
    body = json.dumps({"prompt": "Hi"} | fields).encode()
    return checked(read_completion(body, Origin()))


def chat(**fields: Any) -> Generation:
    (generation,) = ask_chat(**fields).generations
    return generation


def completion(**fields: Any) -> Generation:
    (generation,) = ask_completion(**fields).generations
    return generation
