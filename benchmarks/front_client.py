"""The client of `benchmarks/front.py`: opens streams and notes when their tokens come."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from front_servers import CHARACTERS_PER_TOKEN

from fastgen_api.v1 import inference_pb2

GENERATE: Final = "/fastgen.v1.InferenceService/Generate"
_PROMPT: Final = "The quick brown fox jumps over the lazy dog while the band plays an old song."


@dataclass(slots=True)
class Received:
    """One stream: its messages as they were, and a time for each token (`time.monotonic`)."""

    messages: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def note(self, message: bytes, num_tokens: int) -> None:
        now = time.monotonic()
        self.messages.append(message)
        self.times.extend([now] * num_tokens)


def count_in_response(message: bytes) -> int:
    """Tokens of a GenerateResponse."""
    return len(inference_pb2.GenerateResponse.FromString(message).token_ids)


def count_in_events(data: bytes) -> int:
    """Tokens of a piece of an event stream, by the characters of its texts."""
    texts = data.split(b'"text":"')[1:]
    return sum(text.index(b'"') for text in texts) // CHARACTERS_PER_TOKEN


async def stream_grpc(
    port: int, method: str, num_streams: int, num_tokens: int, count: Callable[[bytes], int]
) -> list[Received]:
    """The streams of a gRPC server, over four connections; `count` says a message's tokens."""
    request = inference_pb2.GenerateRequest(text=_PROMPT)
    request.stopping.max_tokens = num_tokens
    request.stopping.ignore_eos = True
    body = request.SerializeToString()
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(4)]

    async def stream(number: int) -> Received:
        received = Received()
        call: Any = channels[number % len(channels)].unary_stream(method)
        async for message in call(body):
            received.note(message, count(message))
        return received

    streams = await asyncio.gather(*(stream(number) for number in range(num_streams)))
    await asyncio.gather(*(channel.close() for channel in channels))
    return list(streams)


class _SSE(asyncio.Protocol):
    """Sends one request and notes what comes, with as little work as can be."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.received = Received()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received.note(data, count_in_events(data))
        if data.endswith(b"0\r\n\r\n"):
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the stream broke off"))


async def stream_http(port: int, num_streams: int, num_tokens: int) -> list[Received]:
    """Server-sent events of `/v1/completions`, each stream over a connection of its own."""
    body = json.dumps(
        {"model": "", "prompt": _PROMPT, "max_tokens": num_tokens, "stream": True}
        | {"ignore_eos": True}
    ).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    loop = asyncio.get_running_loop()
    protocols = []
    for _ in range(num_streams):
        transport, protocol = await loop.create_connection(lambda: _SSE(request), "127.0.0.1", port)
        protocols.append((transport, protocol))
    await asyncio.gather(*(protocol.ended for _, protocol in protocols))
    for transport, _ in protocols:
        transport.close()
    return [protocol.received for _, protocol in protocols]
