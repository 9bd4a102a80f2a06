"""Turns a checked generation and its tokens into a request for the engine, or refuses it."""

import hashlib
import secrets
from dataclasses import replace
from typing import Final, TypeVar

from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.front.generation import (
    ChatPrompt,
    ErrorKind,
    Generation,
    Prompt,
    RequestError,
    TextPrompt,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.front.generation_check import MAX_LOGPROBS, show_number
from fastgen_runtime.front.prompt import prompt_length
from fastgen_runtime.models.checkpoint import GenerationDefaults
from fastgen_runtime.text.text_bound import TextBound

MAX_TOLD_LOGPROBS: Final = 500_000
"""Of one response, in which each takes some 65 bytes, and three times as much before."""
_Number = TypeVar("_Number", int, float)


def max_body_bytes(max_length: int) -> int:
    """Bodies and prompts above this are refused unread: none that fits is as long."""
    return (1 << 20) + 32 * max_length


def check_size(prompt: Prompt, max_length: int, bound: TextBound | None) -> None:
    """Raises RequestError for what is too long, before anybody works on it.

    bound: what is known of the model's tokenizer, if anything.
    """
    size = prompt_length(prompt)
    if isinstance(prompt, TokenPrompt):
        if size >= max_length:
            raise _too_long(prompt, size, max_length)
        return
    # Each message is at least a token.
    if isinstance(prompt, ChatPrompt) and len(prompt.messages) >= max_length:
        raise invalid("messages", f"may hold at most {max_length - 1} messages")
    if size > max_body_bytes(max_length):
        raise RequestError(
            ErrorKind.TOO_LARGE,
            f"{_field(prompt)} has {size} characters, over the {max_body_bytes(max_length)} taken",
            _field(prompt),
        )
    if bound is not None:
        _check_bytes(prompt, max_length, bound)


def check_num_logprobs(
    generation: Generation, num_prompts: int, num_prompt_tokens: int, max_length: int
) -> None:
    """Raises RequestError where a response would hold more log probabilities than are kept.

    One choice of the longest request may always have as many as can be asked for.
    """
    room = max_length - num_prompt_tokens
    num_tokens = room if generation.max_tokens is None else min(room, generation.max_tokens)
    of_prompt = num_prompt_tokens * _per_token(generation.num_prompt_logprobs)
    of_answer = num_tokens * _per_token(generation.num_logprobs)
    num_told = (of_prompt + of_answer) * generation.num_choices * num_prompts
    most = max(MAX_TOLD_LOGPROBS, max_length * (MAX_LOGPROBS + 1))
    if num_told > most:
        raise invalid(
            "prompt_logprobs" if of_prompt > of_answer else "logprobs",
            f"+ 1, times tokens, n and prompts, makes {num_told} log probabilities in one "
            f"response, and it may hold {most}: ask for less of logprobs, prompt_logprobs, "
            "max_tokens, n or prompts",
        )


def _per_token(num_logprobs: int | None) -> int:
    return 0 if num_logprobs is None else num_logprobs + 1


def new_request(
    generation: Generation,
    engine_id: str,
    token_ids: list[int],
    max_length: int,
    defaults: GenerationDefaults,
    arrived: float = 0.0,
) -> NewRequest:
    """The request of the first choice, with what the client left out filled in.

    Raises RequestError when the prompt leaves no room.
    """
    room = max_length - len(token_ids)
    if room < 1:
        raise _too_long(generation.prompt, len(token_ids), max_length)
    if generation.min_tokens > room:
        raise invalid(
            "min_tokens",
            f"is {show_number(generation.min_tokens)}, and the prompt leaves room for {room} only",
        )
    # An answer of no tokens at all is wanted for its prompt, which one token makes computed.
    max_tokens = room if generation.max_tokens is None else max(1, generation.max_tokens)
    return NewRequest(
        request_id=engine_id,
        prompt_token_ids=token_ids,
        max_tokens=min(room, max_tokens),
        sampling=_sampling(generation, defaults),
        ignore_eos=generation.ignore_eos,
        min_tokens=generation.min_tokens,
        stop_token_ids=tuple(generation.stop_token_ids),
        priority=generation.priority,
        arrived=arrived,
        deadline=generation.deadline,
        num_prompt_logprobs=generation.num_prompt_logprobs,
        grammar=generation.grammar,
        waited=generation.waited_seconds or 0.0,
    )


def requests_of_choices(first: NewRequest, num_choices: int) -> list[NewRequest]:
    """A request per choice, the first one's blocks shared by the group.

    A single one stays as it is. The prompt's log probabilities are the first one's to compute:
    who shares blocks computes nothing to tell them from.
    """
    if num_choices == 1:
        return [first]
    group = first.request_id
    first = replace(first, request_id=f"{group}.0", group=group)
    others = [
        replace(
            first,
            request_id=f"{group}.{index}",
            sampling=replace(first.sampling, seed=choice_seed(first.sampling.seed, index)),
            num_prompt_logprobs=None,
        )
        for index in range(1, num_choices)
    ]
    return [first, *others]


def choice_seed(seed: int, index: int) -> int:
    """The seed of a choice: the request's own for the first one.

    Hashed, so that neighbouring seeds' choices have nothing in common.
    """
    if not index:
        return seed
    key = seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _sampling(generation: Generation, defaults: GenerationDefaults) -> Sampling:
    seed = secrets.randbits(64) if generation.seed is None else generation.seed % 2**64
    return Sampling(
        temperature=_first(generation.temperature, defaults.temperature, 1.0),
        top_k=_first(generation.top_k, defaults.top_k, 0),
        top_p=_first(generation.top_p, defaults.top_p, 1.0),
        min_p=_first(generation.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(generation.repetition_penalty, defaults.repetition_penalty, 1.0),
        frequency_penalty=_first(generation.frequency_penalty, 0.0),
        presence_penalty=_first(generation.presence_penalty, 0.0),
        logit_bias=dict(generation.logit_bias),
        seed=seed,
        num_logprobs=generation.num_logprobs,
    )


def _check_bytes(prompt: TextPrompt | ChatPrompt, max_length: int, bound: TextBound) -> None:
    most_bytes = bound.longest_token_bytes * max_length
    match prompt:
        case TextPrompt(text):
            texts = [text]
        case ChatPrompt(messages):
            texts = [message.content for message in messages]
    num_bytes = bound.count_bytes(texts)
    if num_bytes > most_bytes:
        raise invalid(
            _field(prompt),
            f"has {num_bytes} bytes, and the {max_length} tokens that are taken hold at most "
            f"{most_bytes}",
        )


def _field(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _too_long(prompt: Prompt, num_tokens: int, max_length: int) -> RequestError:
    return invalid(
        _field(prompt),
        f"has {num_tokens} tokens; with room for an answer it may have at most {max_length - 1}, "
        f"for a request may have {max_length} in all",
    )


def _first(*values: _Number | None) -> _Number:
    return next(value for value in values if value is not None)
