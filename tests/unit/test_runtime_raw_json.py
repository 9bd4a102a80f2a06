"""JSON that is kept as it came, and read later, is the client's to answer for at that time, too."""

import contextlib
import json
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai_bodies import HERMES, checked
from starlette.types import Message, Scope
from tokenizers import Tokenizer
from tokenizers.models import BPE

from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import ErrorKind, RequestError
from fastgen_runtime.front.prompt import prompt_length
from fastgen_runtime.protocols.asked import Origin
from fastgen_runtime.protocols.http_app import make_app
from fastgen_runtime.protocols.openai_chat import read_chat
from fastgen_runtime.protocols.openai_completion import read_completion
from fastgen_runtime.protocols.tokenize_api import _prompt, read_tokenize

_FRONT = cast(Front, SimpleNamespace(encoder=SimpleNamespace(tools=HERMES)))
_MESSAGES: Final = b'"messages":[{"role":"user","content":"a"}]'


def read(path: str, body: bytes) -> None:
    """As the server does, to where the prompt is rendered."""
    match path:
        case "chat":
            asked = checked(read_chat(body, Origin(), HERMES))
        case "completions":
            asked = checked(read_completion(body, Origin()))
        case _:
            request = read_tokenize(body)
            prompt_length(_prompt(request, _FRONT))
            return
    for generation in asked.generations:
        prompt_length(generation.prompt)


def _tool(parameters: bytes) -> bytes:
    function = b'{"name":"a","parameters":%b}' % parameters
    return b'"tools":[{"type":"function","function":%b}]' % function


FIELDS: Final = {
    "logit_bias": b'"logit_bias":%b',
    "logit_bias[1]": b'"logit_bias":{"1":%b}',
    "chat_template_kwargs": b'"chat_template_kwargs":%b',
    "tools[0].function.parameters": _tool(b"%b"),
    "structured_outputs.json": b'"structured_outputs":{"json":%b}',
    "response_format.json_schema.schema": b'"response_format":{"type":"json_schema","json_schema":'
    b'{"name":"a","schema":%b}}',
    "messages": b'"messages":[{"role":"assistant","content":[{"type":"text","text":%b}]}]',
    "arguments": b'"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f",'
    b'"arguments":%b}}]}]',
}
BEGUN: Final = {"chat": _MESSAGES, "tokenize": _MESSAGES, "completions": b'"prompt":"a"'}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("completions", b'"logit_bias":{"1":"x"}', "logit_bias[1]"),
        ("completions", b'"logit_bias":{"1":"x"},"logit_bias":null', "logit_bias[...]"),
        ("completions", b'"logit_bias":{"1":"x"},"logit_bias":2', "logit_bias[...]"),
        ("completions", b'"logit_bias":{"1":"x"},"logit_bias":{}', "logit_bias[...]"),
        ("completions", b'"logit_bias":{"1":"x"},"user":', "logit_bias[...]"),
        ("completions", b'"logit_bias":{"1":"x"},"user":"\xff"', "logit_bias[1]"),
        ("completions", b'"logit_bias":{"1":1e400}', "logit_bias[...]"),
        ("completions", b'"`$.logit_bias[...]`":1', None),
        ("completions", b'"structured_outputs":{"json":"\xff"}', "structured_outputs.json"),
        ("completions", b'"structured_outputs":{"json":{"a":1e400}}', "structured_outputs.json"),
        ("completions", b'"structured_outputs":{"json":"{\\"a\\":1e400}"}',
         "structured_outputs.json"),
        ("chat", b'"chat_template_kwargs":{"a":1e400}', "chat_template_kwargs"),
        ("chat", b'"chat_template_kwargs":{"a":"\xff"}', "chat_template_kwargs"),
        ("chat", b'"chat_template_kwargs":{"a":' + b"1" * 5000 + b"}", "chat_template_kwargs"),
        ("tokenize", b'"chat_template_kwargs":{"a":1e400}', "chat_template_kwargs"),
        ("chat", _tool(b"1e400"), "tools[0].function.parameters"),
        ("tokenize", _tool(b'{"a":"\xff"}'), "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(
    path: str, fields: bytes, field: str | None
) -> None:
    with pytest.raises(RequestError) as refused:
        read(path, b"{%b,%b}" % (BEGUN[path], fields))
    assert refused.value.kind is ErrorKind.INVALID
    if field is not None:
        assert refused.value.field == field


def test_a_bad_bias_is_named_in_a_body_that_ends_behind_it() -> None:
    with pytest.raises(RequestError) as refused:
        read("completions", b'{"prompt":"a","logit_bias":{"1":"x"}')
    assert refused.value.field == "logit_bias[...]"


def test_integers_of_more_than_64_bits_may_stand_in_a_schema() -> None:
    read("chat", b"{%b,%b}" % (_MESSAGES, _tool(b'{"maximum":1' + b"0" * 40 + b"}")))


_PIECES = st.one_of(
    st.sampled_from([
        b"1e400", b"-1e400", b"1" * 400, b"1" * 4400, b'"\xff"', b'{"\xff":1}', b'"\\ud800"',
        b'"\xed\xa0\x80"', b"null", b" null ", b'"x"', b"{}", b"[]", b"2", b"NaN", b'"', b"{", b"",
        b"[" * 70 + b"]" * 70, b"[" * 2000, b'"{\\"a\\":1e400}"', b'"\\"\\\\ud800\\""',
        b'{"1":"x"}', b'{"a":{"a":1e400}}', b"10000000000000000000000000000000",
    ]),
    st.binary(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda below: st.lists(below, max_size=3)
        | st.dictionaries(st.text(max_size=3), below, max_size=3),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip
_VALUES = _PIECES | _PIECES.map(lambda piece: b'{"a":%b}' % piece)
_GIVEN = st.tuples(st.sampled_from(sorted(FIELDS)), _VALUES)


@given(
    st.sampled_from(sorted(BEGUN)),
    st.lists(_GIVEN, min_size=1, max_size=3),
    st.just(0) | st.integers(0, 40),
    st.none() | st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=1)),
)
@example("completions", [("logit_bias", b'{"1":"x"}'), ("logit_bias", b"null")], 0, None)
@example("completions", [("logit_bias", b'{"1":"x"}')], 1, None)
def test_no_mutation_of_a_field_raises_anything_but_a_refusal(
    path: str, fields: list[tuple[str, bytes]], cut: int, changed: tuple[int, bytes] | None
) -> None:
    """cut: bytes that miss at the end. changed: a byte that is another."""
    parts = [BEGUN[path], *(FIELDS[name] % value for name, value in fields)]
    body = b"{%b}" % b",".join(parts)
    body = body[: len(body) - cut]
    if changed is not None:
        place, byte = changed
        body = body[:place] + byte + body[place + 1 :]
    with contextlib.suppress(RequestError):
        read(path, body)


async def test_a_defect_is_answered_with_the_connections_end() -> None:
    def fail() -> str:
        raise ZeroDivisionError

    tokenizer = Tokenizer(BPE())
    front = SimpleNamespace(encoder=SimpleNamespace(tokenizer=tokenizer), why_not_serving=fail)
    scope: Scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    sent: list[Any] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):
        await make_app(cast(Front, front))(scope, receive, send)
    assert sent[0]["status"] == 500
    assert (b"connection", b"close") in sent[0]["headers"]
