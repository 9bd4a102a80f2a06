"""gRPC's messages say the same as what the front works with."""

from dataclasses import fields

import pytest
from google.protobuf import json_format

from fastgen_api.v1 import inference_pb2
from fastgen_runtime.engine.request import FinishReason, Grammar, GrammarKind
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Delta, PromptEcho, Usage
from fastgen_runtime.front.generation import (
    ChatMessage,
    ChatPrompt,
    Generation,
    RequestError,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.protocols.grpc_generation import generation_of, response_of

Request = inference_pb2.GenerateRequest


def generation(request: Request) -> Generation:
    return generation_of(
        request,
        8,
        request_id="r",
        traceparent="t",
        waited_seconds=0.25,
        model_judged=False,
        is_unwitnessed=False,
        deadline=9.0,
    )


def test_a_bare_request_leaves_all_to_the_defaults() -> None:
    assert generation(Request(text="Hi")) == Generation(
        TextPrompt("Hi"), request_id="r", traceparent="t", waited_seconds=0.25, deadline=9.0,
        protocol="grpc",
    )  # fmt: skip


def test_every_field_arrives() -> None:
    request = Request(
        model="m",
        token_ids=inference_pb2.TokenIds(ids=[1, 2]),
        sampling=inference_pb2.Sampling(
            temperature=0, top_p=0.5, seed=0, top_k=0, min_p=0, repetition_penalty=1.5,
            frequency_penalty=-0.5, presence_penalty=0.5, logit_bias={3: -100, 4: 1}, n=3,
        ),
        stopping=inference_pb2.Stopping(
            max_tokens=0, stop=["a", "b"], ignore_eos=True, stop_token_ids=[5, 6], min_tokens=2
        ),
        output=inference_pb2.Output(logprobs=0, prompt_logprobs=5, echo=True),
        regex="a+",
        priority=-3,
    )  # fmt: skip
    made = generation(request)
    assert made.prompt == TokenPrompt([1, 2])
    expected = {
        "model": "m", "temperature": 0, "top_p": 0.5, "seed": 0, "top_k": 0, "min_p": 0,
        "repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 0.5,
        "logit_bias": {3: -100, 4: 1}, "num_choices": 3, "max_tokens": 0, "stop": ("a", "b"),
        "ignore_eos": True, "stop_token_ids": (5, 6), "min_tokens": 2, "num_logprobs": 0,
        "num_prompt_logprobs": 5, "echo": True, "grammar": Grammar(GrammarKind.REGEX, "a+"),
        "priority": -3,
    }  # fmt: skip
    assert {name: getattr(made, name) for name in expected} == expected
    filled_in_elsewhere = {
        "prompt", "waited_seconds", "deadline", "request_id", "traceparent", "protocol",
        "shown_token_ids", "tells_prompt_ids", "model_judged", "is_unwitnessed",
    }  # fmt: skip
    assert {field.name for field in fields(Generation)} == set(expected) | filled_in_elsewhere


@pytest.mark.parametrize(
    ("field", "kind"),
    [("json_schema", GrammarKind.JSON_SCHEMA), ("regex", GrammarKind.REGEX),
     ("lark", GrammarKind.LARK)],
)  # fmt: skip
def test_a_grammar_of_each_kind(field: str, kind: GrammarKind) -> None:
    request = json_format.ParseDict({"text": "x", field: "g"}, Request())
    assert generation(request).grammar == Grammar(kind, "g")


def test_a_chat_with_tools() -> None:
    call = inference_pb2.ToolCall(id="1", name="add", arguments='{"a": 1}')
    message = inference_pb2.ChatMessage
    request = Request(
        chat=inference_pb2.Chat(
            messages=[
                message(role="user", content="1 + 1?", name="Ann"),
                message(role="assistant", tool_calls=[call]),
                message(role="tool", content="2", tool_call_id="1"),
            ],
            tools=[
                inference_pb2.Tool(name="add", description="Adds", parameters='{"type": "object"}'),
                inference_pb2.Tool(name="now"),
            ],
        )
    )
    assert generation(request).prompt == ChatPrompt(
        [
            ChatMessage("user", "1 + 1?", "Ann", []),
            ChatMessage("assistant", "", None, [ToolCall("1", "add", '{"a": 1}')]),
            ChatMessage("tool", "2", None, [], "1"),
        ],
        [Tool("add", "Adds", {"type": "object"}), Tool("now")],
    )


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ({"tools": [{"name": "a", "parameters": "[]"}]}, r"chat.tools\[0\].parameters is no JSON"),
        ({"tools": [{"name": "a", "parameters": "{"}]}, r"chat.tools\[0\].parameters is no JSON"),
        ({"tools": [{"name": "a", "parameters": '{"a":' * 100_000}]}, r"chat.tools\[0\].param"),
        ({"tools": [{"name": "a"}] * 9}, "chat.tools may hold at most 8 tools"),
        ({"messages": [{}] * 9}, "chat.messages may hold at most 8 messages"),
    ],
)
def test_a_chat_that_cannot_be_one(chat: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        generation(json_format.ParseDict({"chat": chat}, Request()))


def test_lists_without_end_are_refused_without_being_read() -> None:
    request = Request(text="x")
    request.stopping.stop_token_ids.extend([1] * 1_000_000)
    made = generation(request)
    assert len(made.stop_token_ids) < 1000
    with pytest.raises(RequestError, match="stop_token_ids may hold at most"):
        check(made)
    biased = Request(
        text="x", sampling=inference_pb2.Sampling(logit_bias=dict.fromkeys(range(9999), 1))
    )
    with pytest.raises(RequestError, match="logit_bias may hold at most"):
        check(generation(biased))


def test_a_delta_in_the_middle_is_told_in_full() -> None:
    logprobs = (TokenLogprobs(5, -0.5, 1, ((5, -0.5), (6, -1.5))), TokenLogprobs(7, -2.0, 3))
    response = response_of("r", Delta("ab", (5, 7), index=2, logprobs=logprobs))
    assert json_format.MessageToDict(response, preserving_proto_field_name=True) == {
        "request_id": "r", "index": 2, "text": "ab", "token_ids": [5, 7],
        "logprobs": [
            {"token_id": 5, "logprob": -0.5, "rank": 1,
             "top": [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -1.5}]},
            {"token_id": 7, "logprob": -2.0, "rank": 3},
        ],
    }  # fmt: skip


def test_the_first_delta_begins_with_the_prompt() -> None:
    echo = PromptEcho("Say: ", (1, 2), (TokenLogprobs(2, -1.0, 4),))
    response = response_of("r", Delta("ab", (5,), prompt=echo))
    assert response.text == "Say: ab"
    assert list(response.token_ids) == [5]
    assert [one.rank for one in response.prompt_logprobs] == [4]


@pytest.mark.parametrize(
    ("matched", "field"),
    [("END", "stop"), (7, "stop_token_id"), (0, "stop_token_id"), (None, None)],
)
def test_what_ended_an_answer_is_told(matched: str | int | None, field: str | None) -> None:
    usage = Usage(3, 4, 2)
    delta = Delta("", (7,), FinishReason.STOP, usage, matched_stop=matched)
    response = response_of("r", delta)
    assert response.WhichOneof("matched_stop") == field
    assert field is None or getattr(response, field) == matched
    assert response.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert (response.usage.prompt_tokens, response.usage.output_tokens) == (3, 4)
    assert response.usage.cached_tokens == 2
    ended = response_of("r", Delta("", (7,), FinishReason.LENGTH))
    assert ended.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert not ended.HasField("usage")
