"""One form of a prompt for all who send it, and one home for the turns of a conversation."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.v1 import inference_pb2 as pb
from fastgen_balancer.estimate import FRAME_BYTES, read
from fastgen_balancer.prompt import (
    MOST_PARTS,
    OPENING_BYTES,
    SHORTEST_OPENING_BYTES,
    PromptKeys,
    keys_of_body,
    keys_of_prompt,
    keys_of_text,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=6,
)
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "max_tokens": st.integers(1, 99),
        "seed": st.integers(0, 99),
        "stream": st.booleans(),
        "user": TEXTS,
    },
)


def http(body: dict[str, Any], **form: Any) -> PromptKeys:
    return read(json.dumps(body, **form).encode(), is_grpc=False).keys


def grpc(request: pb.GenerateRequest) -> PromptKeys:
    body = request.SerializeToString()
    return read(b"\0" + len(body).to_bytes(FRAME_BYTES - 1, "big") + body, is_grpc=True).keys


@given(MESSAGES, SAMPLING, SAMPLING, st.booleans())
def test_only_the_prompt_counts(
    messages: list[dict[str, str]], some: dict[str, Any], others: dict[str, Any], is_ascii: bool
) -> None:
    """Not the order of keys, white space, escapes, sampling, or the protocol."""
    turned = [dict(reversed(message.items())) for message in messages]
    one = http({"messages": messages} | some)
    assert one == http(others | {"messages": turned}, indent=3, ensure_ascii=is_ascii)
    parts = [
        message | {"content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]
    assert one == http({"messages": parts, "tools": [], "n": None})
    chat = pb.Chat(messages=[pb.ChatMessage(**message) for message in messages])
    assert one == grpc(pb.GenerateRequest(chat=chat, sampling=pb.Sampling(temperature=0.3)))


@given(MESSAGES, MESSAGES)
def test_other_messages_are_another_prompt(
    one: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    assert (http({"messages": one}).whole == http({"messages": other}).whole) == (one == other)


@given(TEXTS, TEXTS, MESSAGES)
def test_every_turn_has_the_conversations_opening(
    system: str, question: str, rest: list[dict[str, str]]
) -> None:
    opening = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    first, later = http({"messages": opening}), http({"messages": [*opening, *rest]})
    assert first.opening == later.opening is not None
    assert first.whole != later.whole
    other = [opening[0], {"role": "user", "content": question + "?"}]
    assert http({"messages": other}).opening != first.opening, "one system prompt, two homes"


def test_questions_about_one_document_meet() -> None:
    def keys(question: str, document: str = "d" * OPENING_BYTES) -> PromptKeys:
        return http({"messages": [{"role": "user", "content": document + question}]})

    assert keys("one?").opening == keys("two?").opening
    assert keys("one?").whole != keys("two?").whole
    assert keys("one?").opening != keys("one?", "e" * OPENING_BYTES).opening


def test_tools_are_part_of_the_prompt() -> None:
    messages = [{"role": "user", "content": "hi"}]
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
    function = {"name": "f", "description": "d", "parameters": schema}
    one = http({"messages": messages, "tools": [{"type": "function", "function": function}]})
    plain = http({"messages": messages})
    assert one.whole != plain.whole
    assert one.opening != plain.opening
    tool = pb.Tool(name="f", description="d", parameters=json.dumps(schema, indent=1))
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=[tool])
    assert grpc(pb.GenerateRequest(chat=chat)) == one


def test_texts_and_tokens() -> None:
    text = "x" * 300
    one = http({"prompt": text, "max_tokens": 3})
    assert one == http({"max_tokens": 4, "prompt": [text]}) == keys_of_text(text)
    assert one == grpc(pb.GenerateRequest(text=text))
    ids = list(range(100))
    assert http({"prompt": ids}) == http({"prompt": [ids]})
    assert http({"prompt": ids}) == grpc(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids)))
    both = http({"prompt": [text, "y"]})
    assert both.opening == one.opening
    assert both.whole != one.whole


@given(st.integers(0, 3 * OPENING_BYTES), st.integers(0, 3 * OPENING_BYTES))
def test_a_growing_text_moves_seldom(length: int, more: int) -> None:
    """Not while its length stays between two powers of two, and no more once it is long."""
    text = "".join(chr(97 + i % 26) for i in range(length + more))
    before, after = keys_of_prompt(text[:length]).opening, keys_of_prompt(text).opening
    assert (before is None) == (length < SHORTEST_OPENING_BYTES)
    if before is not None:
        steps = (
            min(length, OPENING_BYTES).bit_length(),
            min(length + more, OPENING_BYTES).bit_length(),
        )
        assert (before == after) == (steps[0] == steps[1])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [3]}', b'{"messages": {"role": "user"}}',
     b'{"prompt": {}}', b'{"prompt": [-1]}', b'{"prompt": [1, "a"]}', b'{"prompt": [1e99]}',
     b'{"messages": [{"role": 3, "content": {"a": []}}]}', b'{"messages": []}',
     b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_no_prompt_still_has_a_key(body: bytes) -> None:
    keys = read(body, is_grpc=False).keys
    assert len(keys.whole) == 16
    assert keys == read(body, is_grpc=False).keys


def test_tools_that_are_no_json_are_the_replicas_to_refuse() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user")], tools=[pb.Tool(parameters="{")])
    assert grpc(pb.GenerateRequest(chat=chat)).opening is None


@pytest.mark.parametrize("parts", [False, True])
def test_more_messages_than_are_looked_at_count_by_their_bytes(parts: bool) -> None:
    def body(number: int) -> bytes:
        text = {"type": "text", "text": "a"}
        message: dict[str, Any] = {"role": "user", "content": "a"}
        messages = (
            [{"role": "user", "content": [text] * (number - 1)}] if parts else [message] * number
        )
        return json.dumps({"messages": messages}).encode()

    most, more = body(MOST_PARTS), body(MOST_PARTS + 1)
    assert read(more, is_grpc=False).keys == keys_of_body(more)
    assert read(most, is_grpc=False).keys != keys_of_body(most)


@pytest.mark.parametrize(
    "fields",
    [
        b'"messages":[{"role":"user","content":"a"}],"tools":[' + b'{"a":{}},' * 40_000 + b"1]",
        b'"prompt":[' + b"[]," * 120_000 + b"1]",
        b'"messages":[{' + b'"a" :1,' * 60_000 + b'"b":1}]',
        b'"prompt":[' + b"1," * 600_000 + b"1]",
        b'"prompt":[' + b'"",' * 60_000 + b'""]',
    ],
)
def test_what_holds_more_values_than_may_be_read_counts_by_its_bytes(fields: bytes) -> None:
    """Nothing is made of its values: while one is read others wait."""
    body = b'{"model":"m","max_tokens":3,"n":2,' + fields + b"}"
    read(b'{"prompt":"a"}', is_grpc=False)
    tracemalloc.start()
    found = read(body, is_grpc=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.keys == keys_of_body(body)
    assert (found.model, found.size.max_output_tokens, found.size.num_choices) == ("m", 3, 2)
    assert peak < 4 * len(body)


def test_a_long_text_is_read_whatever_is_in_it() -> None:
    text = 'a "quoted" {word}, [and more] \\ ' * 9_000
    body = json.dumps({"prompt": text}).encode()
    assert read(body, is_grpc=False).keys == keys_of_text(text)


@pytest.mark.parametrize("kind", ["messages", "tools", "token_ids"])
def test_more_of_anything_than_is_looked_at_counts_by_its_bytes_in_grpc(kind: str) -> None:
    request = pb.GenerateRequest()
    if kind == "token_ids":
        request.token_ids.ids.extend([1] * 600_000)
    elif kind == "messages":
        request.chat.messages.extend([pb.ChatMessage(content="a")] * (MOST_PARTS + 1))
    else:
        request.chat.messages.add(role="user", content="a")
        request.chat.tools.extend([pb.Tool(name="t", parameters="[" + "[]," * 99 + "1]")] * 2_000)
    message = request.SerializeToString()
    body = b"\0" + len(message).to_bytes(FRAME_BYTES - 1, "big") + message
    assert read(body, is_grpc=True).keys == keys_of_body(body)


@pytest.mark.parametrize(
    "model", ["1", "null", '"\xff"', "[" * 4000 + "]" * 4000, '"' + "a" * 9000 + '"']
)
def test_a_model_that_is_no_name_is_none(model: str) -> None:
    body = b'{"prompt":"a","model":' + model.encode("latin-1") + b"}"
    found = read(body, is_grpc=False)
    assert found.model is None
