"""Turns a checked generation and its tokens into a request for the engine, or refuses it."""

import secrets

from fastgen_runtime.checkpoint import GenerationDefaults
from fastgen_runtime.generation import (
    ChatPrompt,
    ErrorKind,
    Generation,
    Prompt,
    RequestError,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.prompt import prompt_length
from fastgen_runtime.request import NewRequest
from fastgen_runtime.step import Sampling


def max_body_bytes(max_length: int) -> int:
    """Bodies and prompts above this are refused unread: none that fits is as long."""
    return (1 << 20) + 32 * max_length


def check_size(prompt: Prompt, max_length: int) -> None:
    """Raises RequestError for what is too long, before anybody works on it."""
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
