"""A gRPC call has one message, or an error that says what is wrong."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from fastgen_api.v1 import inference_pb2
from fastgen_runtime.front.generation import ErrorKind, RequestError
from fastgen_runtime.protocols.grpc_messages import Unreadable, first_message, reader

read = reader(inference_pb2.GenerateRequest, max_bytes=1000)
Messages = AsyncIterator[inference_pb2.GenerateRequest | Unreadable]


async def messages(*all_data: bytes, then_seconds: float = 0.0) -> Messages:
    for data in all_data:
        yield read(data)
    await asyncio.sleep(then_seconds)


async def test_the_first_message_counts() -> None:
    request = inference_pb2.GenerateRequest(text="é")
    assert await first_message(messages(request.SerializeToString(), b"\xff")) == request
    assert await first_message(messages(b"")) == inference_pb2.GenerateRequest()


async def test_a_message_by_gzip_is_opened_to_its_limit() -> None:
    for length in (0, 997):
        request = inference_pb2.GenerateRequest(text="a" * length)
        data = gzip.compress(request.SerializeToString())
        assert await first_message(messages(data)) == request
    data = gzip.compress(inference_pb2.GenerateRequest(text="a" * 998).SerializeToString())
    with pytest.raises(RequestError, match="larger than the 1000 bytes") as refused:
        await first_message(messages(data))
    assert refused.value.kind is ErrorKind.TOO_LARGE


# Without a time: every process that collects the tests finds the same names.
HELLO = gzip.compress(b"\x0a\x05hello", mtime=0)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x05a"),
        *(HELLO[:-1], HELLO + b"x", HELLO[:12] + b"\xff" + HELLO[13:]),
        gzip.compress(b"\xff", mtime=0),
    ],
)
async def test_what_cannot_be_read_is_the_callers_error(data: bytes) -> None:
    with pytest.raises(RequestError, match="cannot be read") as refused:
        await first_message(messages(data))
    assert refused.value.kind is ErrorKind.INVALID


async def test_no_message_is_an_error_too() -> None:
    with pytest.raises(RequestError, match="ended without a message") as refused:
        await first_message(messages())
    assert refused.value.kind is ErrorKind.INVALID


async def test_a_message_is_not_waited_for_for_ever() -> None:
    with pytest.raises(RequestError, match=r"no message for 0\.01 s") as refused:
        await first_message(messages(then_seconds=30.0), seconds=0.01)
    assert refused.value.kind is ErrorKind.DEADLINE
