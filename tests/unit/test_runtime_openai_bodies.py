"""Bodies are understood or refused by name; nothing is accepted and ignored."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_bodies import (
    CALL,
    HERMES,
    MESSAGES,
    TOOL,
    ask_chat,
    chat,
    completion,
)

from fastgen_api.request_id import is_request_id
from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.front.generation import (
    ChatMessage,
    ChatPrompt,
    ErrorKind,
    RequestError,
    TextPrompt,
    TokenPrompt,
    ToolCall,
    waited_seconds,
)
from fastgen_runtime.protocols.asked import Origin
from fastgen_runtime.protocols.openai_chat import read_chat
from fastgen_runtime.protocols.openai_completion import read_completion
from fastgen_runtime.text.tools.format import ModelTools


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m", "max_tokens": 5, "temperature": 0, "top_p": 1, "seed": -1, "stop": "x"},
        {"stop": ["a", "b", "c", "d"], "temperature": 2.0, "top_p": 0.01, "seed": 2**64 - 1},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"n": 3, "presence_penalty": -2, "frequency_penalty": 2.0, "logit_bias": {"7": -100}},
        {"n": None, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto"},
        {"logprobs": True, "top_logprobs": 20, "prompt_logprobs": 0, "return_token_ids": True},
        {"top_k": -1, "min_p": 0.5, "repetition_penalty": 1.5, "stop_token_ids": [1, 2]},
        {"min_tokens": 5, "max_tokens": 5, "priority": -3},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"tools": [TOOL], "tool_choice": "none", "structured_outputs": {"regex": "a"}},
        {"tools": [TOOL], "parallel_tool_calls": False, "response_format": {"type": "json_object"}},
        {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True},
        {"chat_template_kwargs": None, "continue_final_message": True},
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
    messages = [*MESSAGES, reply, {"role": "user", "content": "More", "name": "Al"}]
    assert chat(messages=messages).prompt == ChatPrompt(
        [ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello"),
         ChatMessage("user", "More", "Al")]
    )  # fmt: skip


def test_calls_and_their_results_go_into_the_prompt() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answered = {"role": "tool", "content": "5", "tool_call_id": "c1"}
    prompt = chat(messages=[{"role": "developer", "content": "Be brief"}, called, answered]).prompt
    assert prompt == ChatPrompt(
        [ChatMessage("system", "Be brief"),
         ChatMessage("assistant", "", None, (ToolCall("c1", "f", '{"a": 1}'),)),
         ChatMessage("tool", "5", tool_call_id="c1")]
    )  # fmt: skip


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = chat(messages=[{"role": "user", "content": parts}]).prompt
    assert prompt == ChatPrompt([ChatMessage("user", "one\ntwo")])


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("text", [TextPrompt("text")]),
        (["text"], [TextPrompt("text")]),
        ([1, 2, 3], [TokenPrompt([1, 2, 3])]),
        ([], [TokenPrompt([])]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([[1, 2], "a", []], [TokenPrompt([1, 2]), TextPrompt("a"), TokenPrompt([])]),
    ],
)
def test_prompts(prompt: Any, read: list[TextPrompt | TokenPrompt]) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    asked = read_completion(body, Origin("id", "00-trace", 0.5))
    assert [generation.prompt for generation in asked.generations] == read
    first = asked.generations[0]
    assert (first.request_id, first.traceparent, first.waited_seconds, first.protocol) == (
        "id", "00-trace", 0.5, "http",
    )  # fmt: skip


@pytest.mark.parametrize("prompt", [["a", 1], [[1, 2], 3], 5, None, [1.5], [True], ["a"] * 257])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as refused:
        completion(prompt=prompt)
    assert refused.value.field is not None
    assert refused.value.field.startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"best_of": 2}, "best_of"), ({"suffix": "x"}, "suffix"), ({"logprobs": True}, "logprobs"),
     ({"logprobs": 21}, "logprobs"), ({"messages": []}, "messages"), ({"max_tokens": 0},
     "max_tokens"), ({"echo": 1}, "echo"), ({"tools": [TOOL]}, "tools")],
)  # fmt: skip
def test_completions_refuse_their_own_fields(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        completion(**fields)
    assert refused.value.field == field


def test_an_echo_with_logprobs_asks_for_the_prompts() -> None:
    told = completion(echo=True, logprobs=1, max_tokens=0)
    assert (told.echo, told.num_logprobs, told.num_prompt_logprobs, told.max_tokens) == (
        True, 1, 1, 0,
    )  # fmt: skip
    assert completion(logprobs=2).num_prompt_logprobs is None
    assert completion(best_of=3, n=3).num_choices == 3


JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(JSON, '{"type":"object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "n", "strict": True, "description": "d", "schema": {"type": "array"}}}},
            Grammar(JSON, '{"type": "array"}'),
        ),
        ({"structured_outputs": {"json": {"type": "array"}}}, Grammar(JSON, '{"type": "array"}')),
        ({"structured_outputs": {"json": '{"type":"array"}'}}, Grammar(JSON, '{"type":"array"}')),
        ({"structured_outputs": {"regex": "a+", "json": None}}, Grammar(REGEX, "a+")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar(LARK, 'start: "a"')),
        ({"structured_outputs": {"choice": ["a", 'b"']}}, Grammar(LARK, 'start: "a" | "b\\""')),
        ({"structured_outputs": {"json_object": True}}, Grammar(JSON, '{"type":"object"}')),
    ],
)  # fmt: skip
def test_grammars(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert chat(**fields).grammar == grammar
    assert completion(**fields).grammar == grammar


def test_tools_are_shown_and_constrained_where_it_was_asked() -> None:
    strict = {"type": "function", "function": {"name": "g", "strict": True}}
    assert chat(tools=[TOOL]).grammar is None
    for more in (
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"parallel_tool_calls": False},
        {"tools": [TOOL, strict]},
    ):
        generation = chat(**({"tools": [TOOL]} | more))
        assert isinstance(generation.prompt, ChatPrompt)
        assert generation.prompt.tools[0].parameters == {"type": "object"}
        assert generation.grammar is not None
        assert generation.grammar.kind is LARK
    hidden = ask_chat(tools=[TOOL], tool_choice="none")
    assert hidden.generations[0].prompt == ChatPrompt([ChatMessage("user", "Hi")], ())
    assert hidden.told.tools is None


def test_some_of_the_tools_may_be_called() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    named = {"type": "function", "function": {"name": "g"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    use = ask_chat(tools=[TOOL, other], tool_choice=choice).told.tools
    assert use is not None
    assert [tool.name for tool in use.tools] == ["f", "g"]
    assert (use.names, use.must_call, use.is_constrained) == (frozenset({"g"}), False, True)


def test_a_model_without_tools_says_why() -> None:
    model = ModelTools(None, "this model's chat template knows no tools", HERMES.token_id,
                       frozenset())  # fmt: skip
    with pytest.raises(RequestError, match="tools cannot be used: this model's chat") as refused:
        ask_chat(model, tools=[TOOL])
    assert refused.value.field == "tools"
    assert ask_chat(model, tools=[TOOL], tool_choice="none").told.tools is None


def test_schemas_that_are_nested_too_deeply_are_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    deep = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(RequestError, match="nested too deeply"):
        chat(tools=[deep])
    with pytest.raises(RequestError, match="nested too deeply"):
        chat(structured_outputs={"json": schema})


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
        read_completion(body, Origin())
    assert refused.value.kind is ErrorKind.INVALID


@given(st.binary(max_size=200))
def test_no_body_at_all_raises_anything_else(body: bytes) -> None:
    with pytest.raises(RequestError):
        read_chat(body, Origin(), HERMES)


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
