"""What a body tells of its request: the cost in tokens, and the prompt's keys.

The tokens per byte are learned.
"""

import logging
import zlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from fastgen_api.v1 import inference_pb2
from fastgen_balancer.account import EXPECTED_OUTPUT_TOKENS
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.prompt import (
    PromptKeys,
    is_readable,
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
GZIP: Final = b"\x1f\x8b"
"""How gzip begins (RFC 1952); replicas take no other compression, and say so."""
GZIP_WINDOW: Final = 31
"""zlib's name for a window of 32 KiB with gzip's header."""

NOT_A_PROMPT: Final = (
    TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip
"""What the keys' functions raise for what no replica would take as a prompt."""

MOST_MODEL_BYTES: Final = 4096
"""Of the JSON of a model's name; no model is called so long."""
ABSENT: Final = msgspec.Raw(b"null")

log = logging.getLogger(__name__)


class MalformedBodyError(ValueError):
    """A gRPC body that no replica could read."""


class TooLargeBodyError(ValueError):
    """A compressed body that holds more than one that comes as it is may have."""


class _Body(msgspec.Struct):
    """The fields of an OpenAI request that bound its output or make its prompt."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    prompt: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT


class _Named(msgspec.Struct):
    """The one field that must be found in a body whose others may be anything."""

    model: msgspec.Raw = ABSENT


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

    Raises MalformedBodyError and TooLargeBodyError.
    """
    try:
        return read_grpc(body) if is_grpc else read_http(body)
    except (MalformedBodyError, TooLargeBodyError):
        raise
    except Exception as error:
        # No body may send its request round the picker.
        log.warning("body not read", extra={"error": type(error).__name__})
        return _unread(body)


def read_http(body: bytes) -> Reading:
    """Reads an OpenAI request; one that does not read is the replica's to refuse.

    That includes what is nested too deeply to be read, and what is compressed: replicas open no
    HTTP body.
    """
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _unread(body, _model_of(body))
    output = parsed.max_completion_tokens or parsed.max_tokens
    prompt, keys = _prompt_of_http(parsed, body)
    choices = _choices(parsed.n) * _prompts(prompt)
    return Reading(Size(len(body), None, output, choices), keys, _name(parsed.model))


def read_grpc(body: bytes) -> Reading:
    """Reads a gRPC body that holds one framed GenerateRequest, by gzip or as it is.

    So a prompt has the same keys and the same cost, however it was packed. Raises
    MalformedBodyError and TooLargeBodyError.
    """
    if len(body) < FRAME_BYTES or body[0] > 1:
        raise MalformedBodyError
    if int.from_bytes(body[1:FRAME_BYTES], "big") != len(body) - FRAME_BYTES:
        raise MalformedBodyError
    message = body[FRAME_BYTES:]
    if body[0] == 1:
        if not message.startswith(GZIP):
            return _unread(body)
        message = _opened(message)
    request = inference_pb2.GenerateRequest()
    try:
        request.ParseFromString(message)
    except DecodeError as error:
        raise MalformedBodyError from error
    output = request.stopping.max_tokens if request.stopping.HasField("max_tokens") else None
    tokens = len(request.token_ids.ids) if request.WhichOneof("prompt") == "token_ids" else None
    size = Size(FRAME_BYTES + len(message), tokens, output, _choices(request.sampling.n))
    try:
        keys = keys_of_grpc(request)
    except NOT_A_PROMPT:
        keys = keys_of_body(body)
    return Reading(size, keys, request.model)


def _opened(message: bytes) -> bytes:
    """What gzip has packed; no more of it is opened than a body may have."""
    opener = zlib.decompressobj(GZIP_WINDOW)
    try:
        opened = opener.decompress(message, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise MalformedBodyError from error
    if len(opened) > MAX_BODY_BYTES:
        raise TooLargeBodyError
    if not opener.eof or opener.unused_data:
        raise MalformedBodyError
    return opened


def _unread(body: bytes, model: str | None = None) -> Reading:
    return Reading(Size(len(body)), keys_of_body(body), model)


def _model_of(body: bytes) -> str | None:
    """The model of a body that is refused for something else, so that the right one refuses it."""
    try:
        return _name(msgspec.json.decode(body, type=_Named).model)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _name(raw: msgspec.Raw) -> str | None:
    if len(memoryview(raw)) > MOST_MODEL_BYTES:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _prompt_of_http(parsed: _Body, body: bytes) -> tuple[Any, PromptKeys]:
    """A completion's prompt, None where there is none that reads, and the keys."""
    raws = [bytes(each) for each in (parsed.messages, parsed.tools, parsed.prompt)]
    if not is_readable(raws):
        return None, keys_of_body(body)
    try:
        messages, tools, prompt = map(msgspec.json.decode, raws)
        return prompt, keys_of_prompt(prompt) if messages is None else keys_of_chat(messages, tools)
    except NOT_A_PROMPT:
        return None, keys_of_body(body)


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
