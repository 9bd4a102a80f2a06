"""What a request will cost, in tokens, from its body; and the tokens per byte, learned."""

from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from fastgen_api.v1 import inference_pb2
from fastgen_balancer.account import EXPECTED_OUTPUT_TOKENS

FIRST_TOKENS_PER_BYTE: Final = 0.25
LOWEST_TOKENS_PER_BYTE: Final = 0.02
HIGHEST_TOKENS_PER_BYTE: Final = 1.5
LEARNING_RATE: Final = 0.05


class _Body(msgspec.Struct):
    """The fields of an OpenAI request that bound its output."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a request."""

    prompt_bytes: int
    prompt_tokens: int | None = None
    """Known only of a prompt that comes as token ids."""
    max_output_tokens: int | None = None


def size_of_http(body: bytes) -> Size:
    """Reads an OpenAI request; one that does not read is the replica's to refuse."""
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Size(len(body))
    return Size(len(body), None, parsed.max_completion_tokens or parsed.max_tokens)


def size_of_grpc(body: bytes) -> Size:
    """Reads a gRPC body that holds one GenerateRequest after its five bytes of framing."""
    request = inference_pb2.GenerateRequest()
    try:
        request.ParseFromString(body[5:])
    except DecodeError:
        return Size(len(body))
    output = request.stopping.max_tokens if request.stopping.HasField("max_tokens") else None
    tokens = len(request.token_ids.ids) if request.WhichOneof("prompt") == "token_ids" else None
    return Size(len(body), tokens, output)


def tokens_of(size: Size, tokens_per_byte: float) -> int:
    """Prompt and expected output; at least 1."""
    prompt = size.prompt_tokens
    if prompt is None:
        prompt = round(size.prompt_bytes * tokens_per_byte)
    output = EXPECTED_OUTPUT_TOKENS
    if size.max_output_tokens is not None:
        output = max(0, min(output, size.max_output_tokens))
    return max(1, prompt + output)


def learn(tokens_per_byte: float, size: Size, prompt_tokens: int) -> float:
    """The ratio after a replica told a prompt's tokens, in steps that outliers barely move."""
    if size.prompt_tokens is not None or size.prompt_bytes == 0 or prompt_tokens <= 0:
        return tokens_per_byte
    seen = prompt_tokens / size.prompt_bytes
    seen = min(max(seen, LOWEST_TOKENS_PER_BYTE), HIGHEST_TOKENS_PER_BYTE)
    return tokens_per_byte + LEARNING_RATE * (seen - tokens_per_byte)
