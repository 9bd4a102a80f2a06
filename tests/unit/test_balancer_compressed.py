"""Requests by gzip: the same prompt, the same keys, the same cost, and no bomb."""

import gzip
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_api.v1 import inference_pb2 as pb
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_balancer.estimate import (
    MalformedBodyError,
    Size,
    TooLargeBodyError,
    read,
    read_grpc,
    read_http,
)


def frame(message: bytes, compressed: int = 1) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


@settings(max_examples=50)
@given(st.text(max_size=400), st.integers(0, 9), st.integers(0, 1000))
def test_a_request_reads_the_same_however_it_was_packed(text: str, level: int, n: int) -> None:
    request = pb.GenerateRequest(text=text, stopping=pb.Stopping(max_tokens=n))
    message = request.SerializeToString()
    plain = read_grpc(frame(message, compressed=0))
    assert read_grpc(frame(gzip.compress(message, level, mtime=n))) == plain


def test_a_bomb_is_opened_no_further_than_a_body_may_be_long() -> None:
    bomb = frame(gzip.compress(bytes(20 * MAX_BODY_BYTES)))
    assert len(bomb) < MAX_BODY_BYTES / 40
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeBodyError):
            read(bomb, is_grpc=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_BODY_BYTES
    nested = gzip.compress(gzip.compress(bytes(MAX_BODY_BYTES)))
    with pytest.raises(MalformedBodyError):
        read(frame(nested), is_grpc=True)


# Without a time: every process that collects the tests finds the same names.
HELLO = gzip.compress(b"\x0a\x05hello", mtime=0)


@pytest.mark.parametrize(
    "damaged",
    [
        HELLO[:-1],
        HELLO + b"x",
        HELLO[:12] + b"\xff\xff",
        gzip.compress(b"\xff", mtime=0),
    ],
)
def test_what_gzip_cannot_open_goes_nowhere(damaged: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        read(frame(damaged), is_grpc=True)


def test_what_replicas_do_not_open_is_theirs_to_refuse() -> None:
    """Another compression over gRPC, any over HTTP."""
    assert read_grpc(frame(b"\x78\x9c\x01")).size == Size(8)
    packed = gzip.compress(b'{"prompt": "hello", "max_tokens": 5}')
    assert read_http(packed).size == Size(len(packed))
