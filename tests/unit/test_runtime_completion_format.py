"""OpenAI's responses, whole and in chunks."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fastgen_runtime.engine.request import FinishReason
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Delta, PromptEcho, Usage
from fastgen_runtime.protocols.asked import Told
from fastgen_runtime.protocols.chat_format import ChatWriter
from fastgen_runtime.protocols.completion_format import CompletionWriter
from fastgen_runtime.protocols.openai_tools import ToolUse
from fastgen_runtime.protocols.response_head import ResponseHead
from fastgen_runtime.text.token_text import TokenTexts
from fastgen_runtime.text.tools.format import ToolFormat

HEAD = ResponseHead("id", "m", 1)
USAGE = Usage(3, 2, 1)
USAGE_BODY = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
}
HI, E_ACUTE, FIRST, END = 1, 2, 3, 5
"""Tokens `Hi`, `é` in two halves (2, then 4), and the special token `<end>`."""
SECOND = 4


@pytest.fixture(scope="module")
def texts() -> TokenTexts:
    vocabulary = {"a": 0, "Hi": HI, "é": E_ACUTE, "Ã": FIRST, "©": SECOND}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TokenTexts(tokenizer)


def parse(events: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in events.decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_chat_stream_names_the_role_first_and_the_reason_last(texts: TokenTexts) -> None:
    writer = ChatWriter(HEAD, Told(with_usage=True), texts)
    (first,) = parse(writer.events(0, Delta("", (1,))))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert writer.events(0, Delta("", (1,))) == b""
    end = Delta('bye "\n', (2,), FinishReason.LENGTH, USAGE)
    text, finish = parse(writer.events(0, end))
    assert text["choices"][0]["delta"] == {"content": 'bye "\n'}
    assert text["choices"][0]["finish_reason"] is None
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "length"
    usage, done = parse(writer.end(USAGE))
    assert first["usage"] is text["usage"] is finish["usage"] is None
    assert (usage["choices"], usage["usage"], done) == ([], USAGE_BODY, "[DONE]")
    assert {chunk["object"] for chunk in (first, text, finish, usage)} == {"chat.completion.chunk"}


def test_a_stream_without_usage_has_none(texts: TokenTexts) -> None:
    writer = CompletionWriter(HEAD, Told(), texts)
    end = Delta("all", (2,), FinishReason.STOP, USAGE, matched_stop="x")
    text, finish = parse(writer.events(0, end, USAGE))
    assert text["choices"][0]["text"] == "all"
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert finish["choices"][0]["stop_reason"] == "x"
    assert "usage" not in text
    assert writer.end(USAGE) == b"data: [DONE]\n\n"


def test_usage_so_far(texts: TokenTexts) -> None:
    told = Told(with_usage=True, with_usage_so_far=True)
    for writer in (ChatWriter(HEAD, told, texts), CompletionWriter(HEAD, told, texts)):
        (chunk,) = parse(writer.events(0, Delta("a", (1,)), USAGE))
        assert chunk["usage"] == USAGE_BODY


def test_choices_keep_their_index(texts: TokenTexts) -> None:
    """Choice 1 of the third of several prompts with two choices each."""
    stream, whole = (CompletionWriter(HEAD, Told(num_choices=2), texts) for _ in range(2))
    (chunk,) = parse(stream.events(4, Delta("b", (1,), index=1), USAGE))
    assert chunk["choices"][0]["index"] == 5
    for base, index, text in ((4, 1, "c"), (0, 0, "a"), (4, 1, "d")):
        whole.add(base, Delta(text, (1,), FinishReason.STOP, None, index))
    body = json.loads(b"".join(whole.whole(USAGE)))
    assert [(one["index"], one["text"]) for one in body["choices"]] == [(0, "a"), (5, "cd")]
    assert body["usage"] == USAGE_BODY


LOGPROBS = (
    TokenLogprobs(FIRST, -1.5, 2, ((HI, -0.5), (FIRST, -1.5))),
    TokenLogprobs(SECOND, float("-inf"), 9, ((END, -0.1), (HI, -2.0))),
)
ANSWER = Delta("é", (FIRST, SECOND), FinishReason.STOP, USAGE, logprobs=LOGPROBS)


def test_log_probabilities_of_a_chat(texts: TokenTexts) -> None:
    told = Told(num_logprobs=1, with_token_ids=True)
    stream, whole = (ChatWriter(HEAD, told, texts) for _ in range(2))
    whole.add(0, ANSWER)
    (choice,) = json.loads(b"".join(whole.whole(USAGE)))["choices"]
    first, second = choice["logprobs"]["content"]
    assert first == {
        "token": "bytes:\\xc3",
        "logprob": -1.5,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}],
    }
    assert (second["logprob"], second["top_logprobs"][0]["token"]) == (-9999.0, "<end>")
    assert choice["token_ids"] == [FIRST, SECOND]
    chunk, finish = parse(stream.events(0, ANSWER, USAGE))
    assert chunk["choices"][0]["logprobs"] == choice["logprobs"]
    assert chunk["choices"][0]["token_ids"] == [FIRST, SECOND]
    assert finish["choices"][0]["logprobs"] is None


def test_an_echo_with_log_probabilities(texts: TokenTexts) -> None:
    told = Told(num_logprobs=1, is_echo=True, num_prompt_logprobs=2, with_token_ids=True)
    echo = PromptEcho(
        "<end>Hi", (END, HI), (TokenLogprobs(HI, -3.0, 4, ((0, -1.0), (FIRST, -2.0))),)
    )
    answer = Delta("é", (FIRST, SECOND, END), FinishReason.STOP, USAGE,
                   logprobs=(*LOGPROBS, TokenLogprobs(END, -0.25, 1, ((END, -0.25),))),
                   prompt=echo)  # fmt: skip
    stream, whole = (CompletionWriter(HEAD, told, texts) for _ in range(2))
    whole.add(0, answer)
    (choice,) = json.loads(b"".join(whole.whole(USAGE)))["choices"]
    assert choice["text"] == "<end>Hié"
    assert choice["logprobs"] == {
        "tokens": ["<end>", "Hi", "bytes:\\xc3", "bytes:\\xa9", "<end>"],
        "token_logprobs": [None, -3.0, -1.5, -9999.0, -0.25],
        "top_logprobs": [
            None,
            {"a": -1.0, "Hi": -3.0},
            {"Hi": -0.5, "bytes:\\xc3": -1.5},
            {"<end>": -0.1, "bytes:\\xa9": -9999.0},
            {"<end>": -0.25},
        ],
        "text_offset": [0, 5, 7, 7, 8],
    }
    assert choice["prompt_logprobs"] == [
        None,
        {
            "0": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
            "3": {"logprob": -2.0, "rank": 2, "decoded_token": "bytes:\\xc3"},
            "1": {"logprob": -3.0, "rank": 4, "decoded_token": "Hi"},
        },
    ]
    assert choice["prompt_token_ids"] == [END, HI]
    (chunk,) = parse(stream.events(0, answer, USAGE))
    assert chunk["choices"] == [choice]


def test_deltas_of_a_whole_answer_are_joined(texts: TokenTexts) -> None:
    told = Told(num_logprobs=1, with_token_ids=True)
    at_once, in_two = (CompletionWriter(HEAD, told, texts) for _ in range(2))
    at_once.add(0, ANSWER)
    in_two.add(0, Delta("", (FIRST,), logprobs=LOGPROBS[:1]))
    in_two.add(0, Delta("é", (SECOND,), FinishReason.STOP, USAGE, logprobs=LOGPROBS[1:]))
    assert b"".join(in_two.whole(USAGE)) == b"".join(at_once.whole(USAGE))


@pytest.mark.parametrize("kind", [CompletionWriter, ChatWriter])
def test_a_long_prompt_is_encoded_once_and_in_steps(
    kind: type[CompletionWriter | ChatWriter], texts: TokenTexts
) -> None:
    told = Told(num_choices=3, num_prompt_logprobs=2, num_logprobs=2, is_echo=True)
    logprobs = (TokenLogprobs(HI, -3.0, 4, ((0, -1.0), (FIRST, -2.0))),) * 1000
    echo = PromptEcho("Hi" * 1001, (HI,) * 1001, logprobs)
    writer, at_once = (kind(HEAD, told, texts) for _ in range(2))
    assert sum(1 for _ in writer.prepare(0, echo)) >= 16
    assert list(writer.prepare(0, echo)) == []
    for index in range(3):
        for one in (writer, at_once):
            one.add(0, Delta("é", (), FinishReason.STOP, USAGE, index, prompt=echo))
    pieces = list(writer.whole(USAGE))
    assert len(pieces) == 5
    assert b"".join(pieces) == b"".join(at_once.whole(USAGE))
    assert len(json.loads(b"".join(pieces))["choices"]) == 3


def test_choices_go_on_behind_the_echoed_prompt_each_by_itself(texts: TokenTexts) -> None:
    """The prompt ends within a character that each choice ends in its own way."""
    told = Told(num_choices=2, num_logprobs=0, is_echo=True)
    echo = PromptEcho("Hi", (HI, FIRST), (TokenLogprobs(FIRST, -1.0, 1),))
    writer = CompletionWriter(HEAD, told, texts)
    one, other = (TokenLogprobs(token_id, -1.0, 1) for token_id in (SECOND, HI))
    writer.add(0, Delta("", (SECOND, HI), None, logprobs=(one, other), prompt=echo))
    writer.add(0, Delta("", (HI, HI), None, None, 1, logprobs=(other, other), prompt=echo))
    choices = json.loads(b"".join(writer.whole(USAGE)))["choices"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 2, 2, 3], [0, 2, 2, 5]]


def test_what_is_told_of_a_chats_prompt(texts: TokenTexts) -> None:
    told = Told(num_choices=2, num_prompt_logprobs=0, with_token_ids=True)
    echo = PromptEcho("", (END, HI), (TokenLogprobs(HI, -3.0, 4),))
    stream, whole = (ChatWriter(HEAD, told, texts) for _ in range(2))
    deltas = [Delta("a", (0,), None, None, index, prompt=echo) for index in range(2)]
    for delta in deltas:
        whole.add(0, delta)
    body = json.loads(b"".join(whole.whole(USAGE)))
    assert body["prompt_token_ids"] == [END, HI]
    assert body["prompt_logprobs"][1] == {"1": {"logprob": -3.0, "rank": 4, "decoded_token": "Hi"}}
    chunks = [parse(stream.events(0, delta, USAGE))[0] for delta in deltas]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[END, HI], None]


TOOLS = Told(
    tools=ToolUse(tools=(), callable=(), must_call=False, is_parallel=True, is_constrained=False,
                  form=ToolFormat.HERMES, shown_token_ids=())
)  # fmt: skip
CALLS = (
    'Well:<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
)


def test_calls_of_tools_in_chunks(texts: TokenTexts) -> None:
    writer = ChatWriter(HEAD, TOOLS, texts)
    pieces = [CALLS[start : start + 7] for start in range(0, len(CALLS), 7)]
    events = b"".join(writer.events(0, Delta(piece, (1,)), USAGE) for piece in pieces)
    events += writer.events(0, Delta("", (1,), FinishReason.STOP, USAGE), USAGE)
    chunks = [chunk["choices"][0] for chunk in parse(events)]
    told = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    starts = [call for call in told if "id" in call]
    assert [(call["index"], call["function"]["name"]) for call in starts] == [(0, "f"), (1, "g")]
    assert len({call["id"] for call in starts}) == 2
    assert {call["type"] for call in starts} == {"function"}
    arguments = [
        "".join(call["function"]["arguments"] for call in told if call["index"] == index)
        for index in range(2)
    ]
    assert arguments == ['{"a": 1}', "{}"]
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "Well:"
    assert chunks[-1]["finish_reason"] == "tool_calls"
    for chunk in chunks:
        indices = [call["index"] for call in chunk["delta"].get("tool_calls", [])]
        assert len(indices) == len(set(indices))


def test_calls_of_tools_whole(texts: TokenTexts) -> None:
    writer = ChatWriter(HEAD, TOOLS, texts)
    writer.add(0, Delta(CALLS[:30], (1,)))
    writer.add(0, Delta(CALLS[30:], (1,), FinishReason.STOP, USAGE))
    writer.add(0, Delta(CALLS[5:44], (1,), FinishReason.LENGTH, USAGE, index=1))
    writer.add(0, Delta("<tool_call> no", (1,), FinishReason.STOP, USAGE, index=2))
    calls, cut, text = json.loads(b"".join(writer.whole(USAGE)))["choices"]
    assert calls["message"]["content"] == "Well:"
    assert [call["function"] for call in calls["message"]["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert calls["finish_reason"] == "tool_calls"
    assert calls["message"]["tool_calls"][0].keys() == {"id", "type", "function"}
    assert (cut["message"]["content"], cut["finish_reason"]) == (None, "length")
    assert (text["message"]["content"], text["finish_reason"]) == ("<tool_call> no", "stop")
    assert "tool_calls" not in text["message"]
