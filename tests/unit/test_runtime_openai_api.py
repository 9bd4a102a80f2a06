"""Bodies are understood or refused by name; nothing is accepted and ignored."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from fastgen_api.names import is_request_id
from fastgen_runtime import openai_api
from fastgen_runtime.generation import (
    ChatMessage,
    ChatPrompt,
    ErrorKind,
    RequestError,
    TextPrompt,
    TokenPrompt,
    check,
    waited_seconds,
)
from fastgen_runtime.openai_api import (
    ChatRequest,
    CompletionRequest,
    chat_generation,
    completion_generation,
    decode_chat,
    decode_completion,
)

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatPrompt | None:
    """The prompt of a chat body that is read and checked as the server does."""
    body = json.dumps({"messages": MESSAGES} | fields).encode()
    generation = chat_generation(decode_chat(body), None)
    check(generation)
    assert isinstance(generation.prompt, ChatPrompt)
    return generation.prompt


def completion(**fields: Any) -> None:
    body = json.dumps({"prompt": "Hi"} | fields).encode()
    check(completion_generation(decode_completion(body), None))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"temperature": 2.5}, "temperature", "between 0 and 2, not 2.5"),
        ({"temperature": -1}, "temperature", "between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "expected `float | null`, got `str`"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p", "above 0 and at most 1"),
        ({"max_tokens": 0}, "max_tokens", "1 or more, not 0"),
        ({"max_tokens": 1.5}, "max_tokens", "expected `int | null`"),
        ({"max_completion_tokens": -3}, "max_completion_tokens", "1 or more"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "contradicts"),
        ({"seed": 2**64}, "seed", "64 bits"),
        ({"seed": "x"}, "seed", "expected `int | null`"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop": ["x"] * 100_000}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "1 to 256 characters"),
        ({"stop": "x" * 257}, "stop", "1 to 256 characters"),
        ({"n": 2}, "n", "not supported yet: leave it out or set it to 1"),
        ({"n": True}, "n", "not supported yet"),
        ({"logprobs": True}, "logprobs", "not supported yet: leave it out or set it to false"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported yet"),
        ({"presence_penalty": 0.1}, "presence_penalty", "not supported yet"),
        ({"frequency_penalty": 1}, "frequency_penalty", "not supported yet"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "not supported yet"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported yet"),
        ({"tool_choice": "required"}, "tool_choice", "not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
        ({"modalities": ["audio"]}, "modalities", "not supported yet"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported yet"),
        ({"store": True}, "store", "not supported yet"),
        ({"web_search_options": {}}, "web_search_options", "not supported yet"),
        ({"best_of": 3}, "best_of", "not a parameter that is known here"),
        ({"top_k": 40}, "top_k", "not a parameter that is known here"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream set to true"),
        ({"stream": True, "stream_options": {"what": 1}}, "stream_options.what", "not a parameter"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "not supported yet: leave it out or set it to false",
        ),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "Hi"}, "messages", "expected `array`, got `str`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "one of system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "is 'image_url', and only text is supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
            "messages[0].content[0].type",
            "only text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]},
            "messages[0].content[0].x",
            "not a parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "is missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            "expected `str`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
            "is missing",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "not supported",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert refused.value.kind is ErrorKind.INVALID
    assert refused.value.field == field
    assert words in refused.value.message
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m", "max_tokens": 5, "temperature": 0, "top_p": 1, "seed": -1, "stop": "x"},
        {"stop": ["a", "b", "c", "d"], "temperature": 2.0, "top_p": 0.01, "seed": 2**64 - 1},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"n": None, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto"},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"response_format": {"type": "text"}, "parallel_tool_calls": True},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream": False, "stop": None, "seed": None, "max_tokens": None},
        {"ignore_eos": True},
    ],
)
def test_what_can_be_done_or_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    chat(**fields)


def test_an_answer_can_be_sent_back_as_the_client_got_it() -> None:
    """Clients repeat `message.model_dump()`, empty fields included."""
    reply = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    prompt = chat(messages=[*MESSAGES, reply, {"role": "user", "content": "More", "name": "Al"}])
    assert prompt == ChatPrompt(
        [ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello"),
         ChatMessage("user", "More", "Al")]
    )  # fmt: skip


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = chat(messages=[{"role": "user", "content": parts}])
    assert prompt == ChatPrompt([ChatMessage("user", "one\ntwo")])


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("text", TextPrompt("text")),
        (["text"], TextPrompt("text")),
        ([1, 2, 3], TokenPrompt([1, 2, 3])),
        ([], TokenPrompt([])),
    ],
)
def test_prompts(prompt: Any, read: TextPrompt | TokenPrompt) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    assert completion_generation(decode_completion(body), 0.5).prompt == read


@pytest.mark.parametrize("prompt", [["a", "b"], ["a", 1], [[1, 2]], 5, None, [1.5], [True]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as refused:
        completion(prompt=prompt)
    assert refused.value.field is not None
    assert refused.value.field.startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"best_of": 2}, "best_of"), ({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"),
     ({"logprobs": 0}, "logprobs"), ({"messages": []}, "messages")],
)  # fmt: skip
def test_completions_refuse_their_own_unimplemented_fields(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as refused:
        completion(**fields)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "user": ' + b"[" * 200_000,
        b'{"prompt": "\xff"}', b'{"prompt": "x"} trailing',
    ],
)  # fmt: skip
def test_broken_bodies_are_the_clients_error(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        decode_completion(body)
    assert refused.value.kind is ErrorKind.INVALID


@given(st.binary(max_size=200))
def test_no_body_at_all_raises_anything_else(body: bytes) -> None:
    with pytest.raises(RequestError):
        decode_chat(body)


def paths_of(kind: inspect.Type, path: str = "") -> set[str]:
    """Every field of a type of bodies, `messages.role` for those further down."""
    match kind:
        case inspect.UnionType(types):
            return set().union(*(paths_of(one, path) for one in types))
        case inspect.ListType(item_type=item):
            return paths_of(item, path)
        case inspect.StructType(fields=fields):
            prefix = f"{path}." if path else ""
            below = (paths_of(field.type, prefix + field.encode_name) for field in fields)
            return set().union({path} - {""}, *below)
    return {path}


@pytest.mark.parametrize("request_type", [ChatRequest, CompletionRequest])
def test_every_field_is_implemented_neutral_or_listed_as_without_effect(
    request_type: type[msgspec.Struct],
) -> None:
    implemented = {
        "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "seed", "stop", "stream", "stream_options", "stream_options.include_usage",
        "ignore_eos", "messages.role", "messages.name", "messages.content",
        "messages.content.type", "messages.content.text",
    }  # fmt: skip
    in_messages = {f"messages.{name}" for name in openai_api._NEUTRAL_IN_MESSAGES}
    covered = implemented | set(openai_api._NEUTRAL) | set(openai_api._WITHOUT_EFFECT) | in_messages
    assert paths_of(inspect.type_info(request_type)) <= covered


@pytest.mark.parametrize("field", openai_api._NEUTRAL)
def test_every_field_that_is_not_implemented_is_refused(field: str) -> None:
    """Found in the body, wherever it lies; `best_of` and its like are of completions alone."""
    *above, name = field.split(".")
    fields: dict[str, Any] = {name: "something"}
    for outer in reversed(above):
        fields = {outer: fields}
    request_type = ChatRequest if field in paths_of(inspect.type_info(ChatRequest)) else None
    with pytest.raises(RequestError, match="not supported yet") as refused:
        (chat if request_type else completion)(stream=True, **fields)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("250", 0.25), ("0", 0.0), ("1.5", 0.0015), ("-1", None), ("inf", None),
     ("nan", None), ("soon", None), ("", None), ("3600000", 3600.0), ("3600001", None),
     ("1e308", None)],
)  # fmt: skip
def test_the_wait_at_the_balancer(header: str | None, seconds: float | None) -> None:
    assert waited_seconds(header) == seconds


def test_request_ids_that_fit_in_a_header() -> None:
    assert is_request_id("abc-123")
    assert not any(map(is_request_id, ["", "a\r\nb", "é", "x" * 129]))
