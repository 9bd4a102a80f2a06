"""What a body tells of its request: the cost in tokens, and the prompt's keys.

The tokens per byte are learned.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from fastgen_api.v1 import inference_pb2
from fastgen_balancer.account import EXPECTED_OUTPUT_TOKENS
from fastgen_balancer.prompt import (
    PromptKeys,
    keys_of_body,
    keys_of_chat,
    keys_of_grpc,
    keys_of_prompt,
)

FIRST_TOKENS_PER_BYTE: Final = 0.25
LOWEST_TOKENS_PER_BYTE: Final = 0.02
HIGHEST_TOKENS_PER_BYTE: Final = 1.5
LEARNING_RATE: Final = 0.05
MOST_CHOICES: Final = 128
MOST_PROMPTS: Final = 256
FRAME_BYTES: Final = 5
"""Of gRPC, before each message: whether it is compressed, then its length (big-endian)."""

NOT_A_PROMPT: Final = (
    TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip
"""What the keys' functions raise for what no replica would take as a prompt."""

log = logging.getLogger(__name__)


class MalformedBodyError(ValueError):
    """A gRPC body that no replica could read."""


class _Body(msgspec.Struct):
    """The fields of an OpenAI request that bound its output or make its prompt."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    prompt: Any = None
    messages: Any = None
    tools: Any = None
    model: Any = None


class _Named(msgspec.Struct):
    """The one field that must be found in a body whose others may be anything."""

    model: Any = None


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a request."""

    prompt_bytes: int
    prompt_tokens: int | None = None
    """Known only of a prompt that comes as token ids."""
    max_output_tokens: int | None = None
    """Of each choice."""
    num_choices: int = 1
    """Of all prompts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that is kept of a body."""

    size: Size
    keys: PromptKeys
    model: str | None = None
    """As it names it; None where it does not read, or is no text."""


def read(body: bytes, *, is_grpc: bool) -> Reading:
    """Reads a request; one that cannot be read counts by its bytes.

    Raises MalformedBodyError.
    """
    try:
        return read_grpc(body) if is_grpc else read_http(body)
    except MalformedBodyError:
        raise
    except Exception as error:
        # No body may send its request round the picker.
        log.warning("body not read", extra={"error": type(error).__name__})
        return _unread(body)


def read_http(body: bytes) -> Reading:
    """Reads an OpenAI request; one that does not read is the replica's to refuse.

    That includes what is nested too deeply to be read.
    """
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _unread(body, _model_of(body))
    output = parsed.max_completion_tokens or parsed.max_tokens
    choices = _choices(parsed.n) * _prompts(parsed.prompt)
    size = Size(len(body), None, output, choices)
    return Reading(size, _keys_of_http(parsed, body), _text(parsed.model))


def read_grpc(body: bytes) -> Reading:
    """Reads a gRPC body that holds one framed GenerateRequest; a compressed one is not opened.

    Raises MalformedBodyError.
    """
    if len(body) < FRAME_BYTES or body[0] > 1:
        raise MalformedBodyError
    if int.from_bytes(body[1:FRAME_BYTES], "big") != len(body) - FRAME_BYTES:
        raise MalformedBodyError
    if body[0] == 1:
        return _unread(body)
    request = inference_pb2.GenerateRequest()
    try:
        request.ParseFromString(body[FRAME_BYTES:])
    except DecodeError as error:
        raise MalformedBodyError from error
    output = request.stopping.max_tokens if request.stopping.HasField("max_tokens") else None
    tokens = len(request.token_ids.ids) if request.WhichOneof("prompt") == "token_ids" else None
    size = Size(len(body), tokens, output, _choices(request.sampling.n))
    try:
        keys = keys_of_grpc(request)
    except NOT_A_PROMPT:
        keys = keys_of_body(body)
    return Reading(size, keys, request.model)


def _unread(body: bytes, model: str | None = None) -> Reading:
    return Reading(Size(len(body)), keys_of_body(body), model)


def _model_of(body: bytes) -> str | None:
    """The model of a body that is refused for something else, so that the right one refuses it."""
    try:
        return _text(msgspec.json.decode(body, type=_Named).model)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _keys_of_http(parsed: _Body, body: bytes) -> PromptKeys:
    try:
        if parsed.messages is not None:
            return keys_of_chat(parsed.messages, parsed.tools)
        return keys_of_prompt(parsed.prompt)
    except NOT_A_PROMPT:
        return keys_of_body(body)


def _choices(given: int | None) -> int:
    """As many as were asked for, so far as a replica might grant them."""
    return min(max(1, given or 1), MOST_CHOICES)


def _prompts(given: Any) -> int:
    """How many a completion's list holds; a list of token ids is one prompt."""
    if not isinstance(given, list) or not given or isinstance(given[0], int):
        return 1
    return min(len(given), MOST_PROMPTS)


def prompt_tokens_of(size: Size, tokens_per_byte: float) -> int:
    """The prompt alone."""
    if size.prompt_tokens is not None:
        return size.prompt_tokens
    return round(size.prompt_bytes * tokens_per_byte)


def tokens_of(size: Size, tokens_per_byte: float) -> int:
    """Prompt and expected output; at least 1."""
    prompt = prompt_tokens_of(size, tokens_per_byte)
    output = EXPECTED_OUTPUT_TOKENS
    if size.max_output_tokens is not None:
        output = max(0, min(output, size.max_output_tokens))
    return max(1, prompt + output * size.num_choices)


def learn(tokens_per_byte: float, size: Size, prompt_tokens: int) -> float:
    """The ratio after a replica told a prompt's tokens, in steps that outliers barely move."""
    if size.prompt_tokens is not None or size.prompt_bytes == 0 or prompt_tokens <= 0:
        return tokens_per_byte
    seen = prompt_tokens / size.prompt_bytes
    seen = min(max(seen, LOWEST_TOKENS_PER_BYTE), HIGHEST_TOKENS_PER_BYTE)
    return tokens_per_byte + LEARNING_RATE * (seen - tokens_per_byte)
