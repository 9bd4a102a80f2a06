"""Turns a checked generation and its tokens into a request for the engine, or refuses it."""

import secrets

from fastgen_runtime.checkpoint import GenerationDefaults
from fastgen_runtime.generation import (
    ChatPrompt,
    ErrorKind,
    Generation,
    Prompt,
    RequestError,
    TextPrompt,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.prompt import prompt_length
from fastgen_runtime.request import NewRequest
from fastgen_runtime.step import Sampling
from fastgen_runtime.text_bound import TextBound


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


def new_request(
    generation: Generation,
    engine_id: str,
    token_ids: list[int],
    max_length: int,
    defaults: GenerationDefaults,
) -> NewRequest:
    """Fills in what the client left out; raises RequestError when the prompt leaves no room."""
    room = max_length - len(token_ids)
    if room < 1:
        raise _too_long(generation.prompt, len(token_ids), max_length)
    seed = secrets.randbits(64) if generation.seed is None else generation.seed % 2**64
    sampling = Sampling(
        temperature=_first(generation.temperature, defaults.temperature, 1.0),
        top_p=_first(generation.top_p, defaults.top_p, 1.0),
        seed=seed,
    )
    max_tokens = min(room, generation.max_tokens or room)
    return NewRequest(engine_id, token_ids, max_tokens, sampling, generation.ignore_eos)


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


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
