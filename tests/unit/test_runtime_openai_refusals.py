"""What cannot be done is refused by name, with the way out."""

from typing import Any

import pytest
from openai_bodies import BROKEN_CALL, CALL, TOOL, chat

from fastgen_runtime.front.generation import (
    ErrorKind,
    RequestError,
)


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
        ({"n": 0}, "n", "between 1 and"),
        ({"n": True}, "n", "expected `int | null`"),
        ({"min_tokens": -1}, "min_tokens", "0 or more"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "more than max_tokens"),
        ({"top_k": -2}, "top_k", "between 0 and"),
        ({"min_p": 1.5}, "min_p", "between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
        ({"presence_penalty": 2.1}, "presence_penalty", "between -2 and 2"),
        ({"frequency_penalty": "x"}, "frequency_penalty", "expected `float | null`"),
        ({"logit_bias": {"x": 5}}, "logit_bias", "expected `int`"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]", "between -100 and 100"),
        ({"logit_bias": {"1": 1, "27": "x"}}, "logit_bias[27]", "expected `float`, got `str`"),
        ({"logit_bias": {"1": 1, "27": None}}, "logit_bias[27]", "expected `float`, got `null`"),
        ({"logit_bias": {"9" * 4000: 1}}, "logit_bias", "number"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", "expected `int`"),
        ({"logprobs": 3}, "logprobs", "expected `bool | null`"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "between 0 and 20"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "invalid enum value"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "invalid enum value"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "1 to 64 letters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
            "must be an object",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", "different names"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "none, auto, required"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
            "no tool has this name",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function", "missing"),
        (
            {"tools": [TOOL], "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "with tools only as a JSON schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "must be text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}},
            "response_format.json_schema.schema",
            "must be an object",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "holds 0"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "holds 2"),
        (
            {"structured_outputs": {"choice": ["x"] * 4097}},
            "structured_outputs.choice",
            "at most 4096 texts, not 4097: give a regex",
        ),
        (
            {"structured_outputs": {"choice": ["x" * 200_000]}},
            "structured_outputs.choice",
            "characters in all: give fewer",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "min_tokens": 1},
            "min_tokens",
            "contradicts",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least one"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "no JSON"),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not a parameter",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "contradicts response_format",
        ),
        (
            {"response_format": {"type": "json_object"}, "ignore_eos": True},
            "ignore_eos",
            "contradicts",
        ),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
            "no variable",
        ),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs", "must be an object"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "contradicts",
        ),
        ({"moderation": {"model": "m"}}, "moderation", "not supported yet"),
        ({"modalities": ["audio"]}, "modalities", "not supported yet"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported yet"),
        ({"store": True}, "store", "not supported yet"),
        ({"web_search_options": {}}, "web_search_options", "not supported yet"),
        ({"best_of": 3}, "best_of", "not a parameter that is known here"),
        ({"guided_regex": "a"}, "guided_regex", "not a parameter that is known here"),
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
            "messages[0].tool_calls[0].id",
            "is missing",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
            "for the role assistant",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
            "only function is supported",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [BROKEN_CALL]}]},
            "messages[0].tool_calls[0].function.arguments",
            "must be a JSON object",
        ),
        ({"messages": [{"role": "tool", "content": "5"}]}, "messages[0].tool_call_id", "missing"),
        (
            {"messages": [{"role": "user", "content": "5", "tool_call_id": "x"}]},
            "messages[0].tool_call_id",
            "for the role tool",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
            "messages[0].audio",
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
