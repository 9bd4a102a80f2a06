"""A chat as the values that chat templates read, in the shapes that Hugging Face's have."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from fastgen_runtime.front.generation import ChatMessage, ChatPrompt, Tool, ToolCall, invalid


def chat_values(prompt: ChatPrompt) -> dict[str, Any]:
    """The template's variables; raises RequestError for arguments that are no JSON object."""
    tools = {"tools": [_tool(tool) for tool in prompt.tools]} if prompt.tools else {}
    messages = [_message(number, message) for number, message in enumerate(prompt.messages)]
    return {**prompt.template_variables, **tools, "messages": messages}


def strings_in(value: Any) -> Iterator[str]:
    """Every text in a value of JSON's types, keys included."""
    match value:
        case str():
            yield value
        case dict():
            for key, below in value.items():
                yield key
                yield from strings_in(below)
        case list():
            for below in value:
                yield from strings_in(below)


def change_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every text in it changed."""
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): change_strings(below, change) for key, below in value.items()}
        case list():
            return [change_strings(below, change) for below in value]
    return value


def _message(number: int, message: ChatMessage) -> dict[str, Any]:
    values: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        values["name"] = message.name
    if message.tool_call_id is not None:
        values["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        where = f"messages[{number}].tool_calls"
        values["tool_calls"] = [
            _tool_call(f"{where}[{index}]", call) for index, call in enumerate(message.tool_calls)
        ]
    return values


def _tool_call(where: str, call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.function.arguments", "must be a JSON object in a text")
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters:
        function["parameters"] = dict(tool.parameters)
    return {"type": "function", "function": function}
