"""Messages of a chat body."""

from typing import Any, Final

import msgspec

from fastgen_runtime.front.generation import ChatMessage, RequestError, ToolCall, invalid
from fastgen_runtime.protocols.openai_fields import explain
from fastgen_runtime.protocols.raw_json import json_value

_ROLES: Final = {"developer": "system"}
"""What templates call the roles that they do not know by OpenAI's newest name."""


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one kind of part that is taken; `type` is looked at before the rest."""

    type: str
    text: str


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """arguments: JSON, in a text."""

    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """index: clients that put a stream together keep it."""

    id: str
    function: CalledFunction
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chat message; the fields of type Any may only be empty."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    function_call: Any = None
    audio: Any = None
    annotations: Any = None


NEUTRAL_IN_MESSAGES: Final = ("refusal", "function_call", "audio", "annotations")


def chat_message(number: int, message: Message) -> ChatMessage:
    """number: of the message in the body; raises RequestError naming the field."""
    where = f"messages[{number}]"
    for field in NEUTRAL_IN_MESSAGES:
        if getattr(message, field) not in (None, []):
            raise invalid(f"{where}.{field}", "is not supported")
    role = _ROLES.get(message.role, message.role)
    return ChatMessage(
        role,
        _content(f"{where}.content", message),
        message.name,
        tuple(
            _tool_call(f"{where}.tool_calls[{index}]", call)
            for index, call in enumerate(message.tool_calls or ())
        ),
        message.tool_call_id,
    )


def _content(where: str, message: Message) -> str:
    if message.content is None:
        if not message.tool_calls:
            raise invalid(where, "is missing")
        return ""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_text(f"{where}[{index}]", part) for index, part in enumerate(message.content))


def _text(where: str, part: dict[str, Any]) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind != "text":
        raise invalid(f"{where}.type", f"is {kind[:32]!r}, and only text is supported")
    try:
        return msgspec.convert(part, TextPart).text
    except msgspec.ValidationError as error:
        raise explain(str(error), where) from error


def _tool_call(where: str, call: MessageToolCall) -> ToolCall:
    if call.type != "function":
        raise invalid(f"{where}.type", f"is {call.type[:32]!r}, and only function is supported")
    field = f"{where}.function.arguments"
    try:
        json_value(field, call.function.arguments or "{}", dict[str, Any])
    except RequestError as error:
        raise invalid(field, "must be a JSON object in a text") from error
    return ToolCall(call.id, call.function.name, call.function.arguments or "{}")
