"""One form of a prompt for all who send it, and one home for the turns of a conversation."""

import json
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
