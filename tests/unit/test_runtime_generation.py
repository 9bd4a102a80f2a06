"""What a client may ask for, field by field: each range's ends, and one step beyond."""

import math
from dataclasses import replace
from typing import Any

import pytest

from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.front.admission import choice_seed, new_request, requests_of_choices
from fastgen_runtime.front.generation import (
    ChatMessage,
    ChatPrompt,
    ErrorKind,
    Generation,
    RequestError,
    TextPrompt,
    Tool,
    ToolCall,
)
from fastgen_runtime.front.generation_check import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS, check
from fastgen_runtime.models.checkpoint import GenerationDefaults

VOCABULARY = 1000
ASKED = Generation(TextPrompt("x"))
REGEX = Grammar(GrammarKind.REGEX, "a+")
MESSAGES = [ChatMessage("user", "x")]
CALLS = (ToolCall("1", "f", "{}"),)
HUGE = 10**5000

GOOD: list[dict[str, Any]] = [
    {"num_choices": 1}, {"num_choices": 128},
    {"temperature": 0}, {"temperature": 2.0},
    {"top_p": 1e-9}, {"top_p": 1},
    {"top_k": 0}, {"top_k": 2**31 - 1},
    {"min_p": 0.0}, {"min_p": 1.0},
    {"repetition_penalty": 1e-9}, {"repetition_penalty": 100},
    {"frequency_penalty": -2}, {"frequency_penalty": 2.0},
    {"presence_penalty": -2.0}, {"presence_penalty": 2},
    {"logit_bias": {0: -100, VOCABULARY - 1: 100}},
    {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIASES - 24), 0.0)},
    {"seed": -(2**63)}, {"seed": 2**64 - 1},
    {"stop_token_ids": (0, VOCABULARY - 1)}, {"stop_token_ids": (5,) * MAX_STOP_TOKEN_IDS},
    {"max_tokens": 1}, {"max_tokens": 0, "echo": True}, {"max_tokens": 10, "min_tokens": 10},
    {"min_tokens": 10}, {"min_tokens": 5, "ignore_eos": True},
    {"num_logprobs": 0}, {"num_logprobs": 20},
    {"num_prompt_logprobs": 0}, {"num_prompt_logprobs": 20},
    {"priority": -(2**31)}, {"priority": 2**31 - 1},
    {"grammar": REGEX, "num_choices": 3, "stop": ("x",)},
    {"prompt": ChatPrompt(MESSAGES, [Tool("a"), Tool("b" * 64)])},
    {"prompt": ChatPrompt([ChatMessage("tool", "4", tool_call_id="1")])},
    {"prompt": ChatPrompt([ChatMessage("assistant", "", tool_calls=CALLS)])},
]  # fmt: skip

BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_choices": 0}, "n"),
    ({"num_choices": -1}, "n"),
    ({"num_choices": 129}, "n"),
    *(({"temperature": value}, "temperature") for value in (-0.01, 2.01, math.nan, math.inf)),
    *(({"top_p": value}, "top_p") for value in (0, -1, 1.01, math.nan, -math.inf)),
    *(({"top_k": value}, "top_k") for value in (-1, 2**31)),
    *(({"min_p": value}, "min_p") for value in (-0.01, 1.01, math.nan, math.inf)),
    *(
        ({"repetition_penalty": value}, "repetition_penalty")
        for value in (0, -1, 100.5, math.nan, math.inf)
    ),
    *(
        ({field: value}, field)
        for field in ("frequency_penalty", "presence_penalty")
        for value in (-2.01, 2.01, math.nan, math.inf, -math.inf)
    ),
    ({"logit_bias": {3: 100.5}}, "logit_bias[3]"),
    ({"logit_bias": {3: math.nan}}, "logit_bias[3]"),
    ({"logit_bias": {3: -math.inf}}, "logit_bias[3]"),
    ({"logit_bias": {VOCABULARY: 1}}, "logit_bias"),
    ({"logit_bias": {-1: 1}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 0.0)}, "logit_bias"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ("x",) * 5}, "stop"),
    ({"stop": ("",)}, "stop"),
    ({"stop": ("x" * 257,)}, "stop"),
    ({"stop_token_ids": (VOCABULARY,)}, "stop_token_ids"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids"),
    ({"stop_token_ids": (1,) * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 11, "max_tokens": 10}, "min_tokens"),
    ({"min_tokens": 1, "max_tokens": 0, "echo": True}, "min_tokens"),
    ({"num_logprobs": -1}, "logprobs"),
    ({"num_logprobs": 21}, "logprobs"),
    ({"num_prompt_logprobs": -1}, "prompt_logprobs"),
    ({"num_prompt_logprobs": 21}, "prompt_logprobs"),
    ({"priority": 2**31}, "priority"),
    ({"grammar": REGEX, "ignore_eos": True}, "ignore_eos"),
    ({"grammar": REGEX, "min_tokens": 1}, "min_tokens"),
    ({"prompt": ChatPrompt([])}, "messages"),
    ({"prompt": ChatPrompt([ChatMessage("robot", "x")])}, "messages[0].role"),
    ({"prompt": ChatPrompt([ChatMessage("tool", "4")])}, "messages[0].tool_call_id"),
    (
        {"prompt": ChatPrompt([*MESSAGES, ChatMessage("user", "4", tool_call_id="1")])},
        "messages[1].tool_call_id",
    ),
    (
        {"prompt": ChatPrompt([ChatMessage("user", "", tool_calls=CALLS)])},
        "messages[0].tool_calls",
    ),
    ({"prompt": ChatPrompt(MESSAGES, [Tool("")])}, "tools[0].name"),
    ({"prompt": ChatPrompt(MESSAGES, [Tool("a"), Tool("b" * 65)])}, "tools[1].name"),
    ({"prompt": ChatPrompt(MESSAGES, [Tool("a"), Tool("a")])}, "tools"),
]


@pytest.mark.parametrize("fields", GOOD)
def test_what_is_within_the_ranges_is_taken(fields: dict[str, Any]) -> None:
    check(replace(ASKED, **fields), VOCABULARY)


@pytest.mark.parametrize(("fields", "field"), BAD)
def test_what_is_beyond_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        check(replace(ASKED, **fields), VOCABULARY)
    assert refused.value.kind is ErrorKind.INVALID
    assert refused.value.field == field
    assert refused.value.message.startswith(field)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -HUGE}, {"min_tokens": HUGE, "max_tokens": 1}, {"top_k": HUGE},
        {"num_choices": HUGE}, {"stop_token_ids": (HUGE,)}, {"logit_bias": {HUGE: 1}},
        {"logit_bias": {HUGE: 101}}, {"priority": -HUGE}, {"seed": HUGE},
    ],
)  # fmt: skip
def test_numbers_without_end_are_not_repeated(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        check(replace(ASKED, **fields), VOCABULARY)
    assert len(refused.value.message) < 200


def test_a_huge_min_tokens_is_not_repeated_either() -> None:
    with pytest.raises(RequestError, match="min_tokens is a number of more than 64 bits"):
        new_request(replace(ASKED, min_tokens=HUGE), "1", [1, 2], 10, DEFAULTS)


DEFAULTS = GenerationDefaults(
    temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1
)


def test_the_models_defaults_fill_in_what_is_left_out() -> None:
    suggested = new_request(ASKED, "1", [1, 2], 10, DEFAULTS).sampling
    assert replace(suggested, seed=0) == Sampling(0.6, 20, 0.9, 0.05, 1.1)
    bare = new_request(ASKED, "1", [1, 2], 10, GenerationDefaults()).sampling
    assert replace(bare, seed=0) == Sampling()
    asked = replace(
        ASKED, temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, seed=-1,
        frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={3: 1.5}, num_logprobs=2,
    )  # fmt: skip
    assert new_request(asked, "1", [1, 2], 10, DEFAULTS).sampling == Sampling(
        temperature=0, frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={3: 1.5},
        seed=2**64 - 1, num_logprobs=2,
    )  # fmt: skip


def test_a_request_holds_what_the_scheduler_needs() -> None:
    asked = replace(
        ASKED, max_tokens=3, min_tokens=2, stop_token_ids=[7], priority=-4, deadline=9.0,
        num_prompt_logprobs=1, grammar=REGEX, ignore_eos=True, waited_seconds=1.5,
    )  # fmt: skip
    new = new_request(asked, "5", [1, 2], 10, DEFAULTS, arrived=4.5)
    assert new.waited == 1.5
    assert (new.request_id, new.prompt_token_ids, new.max_tokens) == ("5", [1, 2], 3)
    assert (new.min_tokens, new.stop_token_ids, new.ignore_eos) == (2, (7,), True)
    assert (new.priority, new.arrived, new.deadline) == (-4, 4.5, 9.0)
    assert (new.num_prompt_logprobs, new.grammar, new.group) == (1, REGEX, "")


@pytest.mark.parametrize(("max_tokens", "given"), [(None, 8), (3, 3), (99, 8), (0, 1)])
def test_tokens_are_limited_by_the_room(max_tokens: int | None, given: int) -> None:
    asked = replace(ASKED, max_tokens=max_tokens, echo=True)
    assert new_request(asked, "1", [1, 2], 10, DEFAULTS).max_tokens == given


def test_no_room_is_told() -> None:
    with pytest.raises(RequestError, match="prompt has 10 tokens"):
        new_request(ASKED, "1", [1] * 10, 10, DEFAULTS)
    with pytest.raises(RequestError, match="min_tokens is 9, and the prompt leaves room for 8"):
        new_request(replace(ASKED, min_tokens=9), "1", [1, 2], 10, DEFAULTS)


def test_the_first_choice_of_several_is_the_only_one_of_one() -> None:
    asked = replace(ASKED, seed=42, num_prompt_logprobs=0, max_tokens=4)
    alone = new_request(asked, "6", [1, 2], 10, DEFAULTS)
    assert requests_of_choices(alone, 1) == [alone]
    first, *others = requests_of_choices(alone, 3)
    assert first == replace(alone, request_id="6.0", group="6")
    assert first.sampling.seed == 42
    assert [one.request_id for one in others] == ["6.1", "6.2"]
    assert [one.num_prompt_logprobs for one in (first, *others)] == [0, None, None]
    for one in others:
        plain = replace(one, request_id="6.0", sampling=first.sampling, num_prompt_logprobs=0)
        assert plain == first


def test_choices_of_neighbouring_seeds_have_nothing_in_common() -> None:
    seeds = [choice_seed(seed, index) for seed in (0, 1, 2, 2**64 - 1) for index in range(128)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
