"""A prompt in one form, whichever client sent it, and the keys that are made of it.

Two requests have the same prompt when the model would compute the same tokens for both, so far as
the balancer can see: the order of JSON's keys, white space, sampling and limits do not count.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

from fastgen_api.v1 import inference_pb2

OPENING_BYTES: Final = 4096
"""Longest beginning of a text that is told apart; some thousand tokens."""
SHORTEST_OPENING_BYTES: Final = 256
"""Less is computed anew as fast as it is found."""
MOST_PARTS: Final = 10_000
"""Messages and their parts that are looked at one by one: meanwhile other requests wait."""
MOST_STRINGS: Final = 100_000
"""Strings, lists and objects of JSON that are read; a tenth of a second's work."""
MOST_NUMBERS: Final = 500_000
"""Token ids, or what else stands between commas."""


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """What is kept of a prompt: nothing that could be read."""

    whole: bytes
    """Of all of it."""
    opening: int | None
    """64 bits: of its beginning, the same in every turn of a conversation; None: too short."""


def is_readable(raws: Iterable[bytes]) -> bool:
    """Whether these pieces of JSON hold no more values than may be read while others wait.

    Counted without reading: characters within texts count, too, so a long text full of brackets may
    be taken for more than it is.
    """
    strings = numbers = 0
    for raw in raws:
        strings += raw.count(b"{") + raw.count(b"[") + raw.count(b'"') - raw.count(b'\\"')
        numbers += raw.count(b",")
    return strings <= MOST_STRINGS and numbers <= MOST_NUMBERS


def form_of(body: bytes) -> bytes:
    """Of a request with all that it asks for, as it was sent."""
    return _whole(b"form", body)


def keys_of_body(body: bytes) -> PromptKeys:
    """Of a body that does not read: every byte of it counts."""
    return PromptKeys(_whole(b"body", body), None)


def keys_of_chat(messages: Any, tools: Any) -> PromptKeys:
    """Of an OpenAI chat. Its opening is all up to the first message of the user.

    System messages alone would give all conversations of an application one home. What follows the
    first question differs from turn to turn. A longer first message counts by its beginning, so
    that questions about one document meet. Raises TypeError when these are no messages, or more
    than MOST_PARTS.
    """
    if _count_parts(messages) > MOST_PARTS:
        raise TypeError("too many messages")
    plain = [_message(each) for each in messages]
    roles = [message.get("role") for message in plain]
    end = roles.index("user") + 1 if "user" in roles else min(1, len(plain))
    head = plain[:end]
    if head and isinstance(text := head[-1].get("content"), str):
        head[-1] = head[-1] | {"content": text[:OPENING_BYTES]}
    whole = _canonical([tools or None, plain])
    return PromptKeys(_whole(b"chat", whole), _number(b"chat", _canonical([tools or None, head])))


def keys_of_prompt(prompt: Any) -> PromptKeys:
    """Of the prompt of an OpenAI completion: a text, token ids, or a list of either."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) == 1:
            return keys_of_prompt(prompt[0])
        return PromptKeys(_whole(b"list", _canonical(prompt)), keys_of_prompt(prompt[0]).opening)
    if isinstance(prompt, list):
        return keys_of_tokens(prompt)
    if isinstance(prompt, str):
        return keys_of_text(prompt)
    raise TypeError(f"a prompt of type {type(prompt).__name__}")


def keys_of_text(text: str) -> PromptKeys:
    """Of a plain text."""
    data = text.encode("utf-8", "surrogatepass")
    return PromptKeys(_whole(b"text", data), _opening(b"text", data))


def keys_of_tokens(ids: Sequence[int]) -> PromptKeys:
    """Of token ids. Raises OverflowError or TypeError when they are none, and ValueError when there
    are more than MOST_NUMBERS."""
    if len(ids) > MOST_NUMBERS:
        raise ValueError("too many token ids")
    data = array("I", ids).tobytes()
    return PromptKeys(_whole(b"tokens", data), _opening(b"tokens", data))


def keys_of_grpc(request: inference_pb2.GenerateRequest) -> PromptKeys:
    """Of a gRPC request; a chat or a text has the keys that it would have over HTTP.

    Raises what `keys_of_chat` and `keys_of_tokens` do, and ValueError for tools of more values than
    `is_readable` allows.
    """
    match request.WhichOneof("prompt"):
        case "chat":
            chat = request.chat
            calls = sum(len(each.tool_calls) for each in chat.messages[:MOST_PARTS])
            if len(chat.messages) + calls + len(chat.tools) > MOST_PARTS:
                raise TypeError("too many messages")
            if not is_readable(each.parameters.encode() for each in chat.tools):
                raise ValueError("too many values in tools")
            tools = [_tool(each) for each in request.chat.tools]
            return keys_of_chat([_grpc_message(each) for each in request.chat.messages], tools)
        case "token_ids":
            return keys_of_tokens(request.token_ids.ids)
        case _:
            return keys_of_text(request.text)


def _opening(kind: bytes, data: bytes) -> int | None:
    """Of a text that grows from turn to turn: its beginning, in lengths that double.

    So a conversation moves a few times while it is short, where a fixed short length would give
    one home to all texts of a template, and a fixed long one a new home to each turn.
    """
    if len(data) < SHORTEST_OPENING_BYTES:
        return None
    length = min(1 << (len(data).bit_length() - 1), OPENING_BYTES)
    return _number(kind, data[:length])


def _count_parts(messages: Sequence[Any]) -> int:
    contents = (each.get("content") for each in messages if isinstance(each, dict))
    return len(messages) + sum(len(each) for each in contents if isinstance(each, list))


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise TypeError("a message is no object")
    plain = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        # As the replica joins them.
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(text, str) for text in texts):
            plain["content"] = "\n".join(map(str, texts))
    return {key: value for key, value in plain.items() if value not in (None, [], "")}


def _grpc_message(message: inference_pb2.ChatMessage) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def _tool(tool: inference_pb2.Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = msgspec.json.decode(tool.parameters)
    return {"type": "function", "function": function}


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _whole(kind: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=kind).digest()


def _number(kind: bytes, data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8, person=kind).digest())
