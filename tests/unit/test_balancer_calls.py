"""The server of Envoy's calls, asked by grpc's own client and by bytes as they may come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest
from balancer_process import free_ports
from hpack.hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer import frames
from fastgen_balancer.call_server import WINDOW_BYTES, CallServer, Connection
from fastgen_balancer.calls import MAX_MESSAGE_BYTES, Caller
from fastgen_balancer.frames import FrameError, FrameReader

PATH = "/test.Service/Echo"


class Echo:
    """Sends back what it gets, and notes when its caller has left."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.heard: list[bytes] = []
        self.left_times = 0
        self.gone = asyncio.Event()
        self.came = asyncio.Event()

    def receive(self, message: bytes) -> None:
        self.heard.append(message)
        self.came.set()
        if message == b"fall":
            raise ValueError("as it was asked to")
        self.caller.send(message)

    def left(self) -> None:
        self.left_times += 1
        self.gone.set()
        if self.heard[-1:] == [b"fall at the end"]:
            raise ValueError("as it was asked to")


class Echoes:
    def __init__(self) -> None:
        self.all: list[Echo] = []

    def __call__(self, caller: Caller) -> Echo:
        self.all.append(Echo(caller))
        return self.all[-1]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echoes, grpc.aio.Channel, CallServer]]:
    echoes, (port,) = Echoes(), free_ports(1)
    server = CallServer({PATH: echoes})
    await server.start(port)
    options = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield echoes, channel, server
    finally:
        await server.stop()


def dial(channel: grpc.aio.Channel, path: str = PATH) -> Any:
    return channel.stream_stream(path)()


async def test_messages_of_any_length_come_back_whole() -> None:
    """Beyond all windows, too: both sides have to make room for each other."""
    async with serving() as (echoes, channel, _):
        call = dial(channel)
        for length in (0, 1, 5, frames.MAX_FRAME_BYTES, 70_000, WINDOW_BYTES + 1):
            message = bytes([length % 251]) * length
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        (echo,) = echoes.all
        await echo.gone.wait()
        assert echo.left_times == 1


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with serving() as (echoes, channel, _):

        async def talk(number: int) -> None:
            call = dial(channel)
            for turn in range(3):
                told = f"{number} {turn} ".encode() * 3000
                await call.write(told)
                assert await call.read() == told
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF

        await asyncio.gather(*(talk(number) for number in range(50)))
        assert [each.left_times for each in echoes.all] == [1] * 50


async def test_a_caller_that_cancels_has_left() -> None:
    async with serving() as (echoes, channel, _):
        call = dial(channel)
        await call.write(b"hello")
        await call.read()
        call.cancel()
        await echoes.all[0].gone.wait()
        # An answer that comes too late goes nowhere, and harms no other call.
        echoes.all[0].caller.send(b"late")
        other = dial(channel)
        await other.write(b"well?")
        assert await other.read() == b"well?"
    assert [each.left_times for each in echoes.all] == [1, 1]


async def test_a_receiver_that_fails_ends_its_own_call() -> None:
    async with serving() as (echoes, channel, _):
        other, call = dial(channel), dial(channel)
        await other.write(b"before")
        assert await other.read() == b"before"
        await call.write(b"fall")
        assert await call.code() is grpc.StatusCode.UNKNOWN
        await other.write(b"after")
        assert await other.read() == b"after"
    assert [each.left_times for each in echoes.all] == [1, 1]


async def test_a_receiver_that_fails_at_the_end_harms_nobody_else() -> None:
    async with serving() as (_, channel, _):
        other, call = dial(channel), dial(channel)
        await other.write(b"before")
        assert await other.read() == b"before"
        await call.write(b"fall at the end")
        await call.read()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await other.write(b"after")
        assert await other.read() == b"after"


async def test_an_unknown_method_is_refused() -> None:
    async with serving() as (echoes, channel, _):
        call = dial(channel, "/test.Service/Other")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert not echoes.all


async def test_a_server_that_stops_ends_its_calls() -> None:
    async with serving() as (echoes, channel, server):
        call = dial(channel)
        await call.write(b"hello")
        await call.read()
        await server.stop()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert echoes.all[0].left_times == 1


async def test_a_port_that_is_taken_is_told() -> None:
    (port,) = free_ports(1)
    one, other = CallServer({}), CallServer({})
    await one.start(port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start(port)
    await one.stop()


class Wire(asyncio.Transport):
    """Keeps what a connection sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_shut = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_shut

    def close(self) -> None:
        self.is_shut = True


async def tell(*pieces: bytes) -> tuple[list[Echo], list[frames.Frame], Wire]:
    """The receivers, and the frames that a connection answers to these bytes."""
    echoes, wire = Echoes(), Wire()
    connection = Connection({PATH: echoes}, set())
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    answers = list(FrameReader().read(frames.PREFACE + bytes(wire.sent)))
    return echoes.all, answers, wire


def message(text: bytes) -> bytes:
    return b"\0" + len(text).to_bytes(4, "big") + text


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream, payload)


def begins(stream: int, encoder: Encoder, path: str = PATH) -> bytes:
    block = encoder.encode([(":method", "POST"), (":path", path), ("te", "trailers")])
    half = len(block) // 2
    padded = bytes((3,)) + b"\0\0\0\0\x10" + block[:half] + bytes(3)
    flags = frames.PADDED | frames.PRIORITY
    return frames.frame(frames.HEADERS, flags, stream, padded) + frames.frame(
        frames.CONTINUATION, frames.END_HEADERS, stream, block[half:]
    )


def told() -> bytes:
    """Two calls, with all that the protocol allows between them."""
    encoder = Encoder()
    first = begins(1, encoder)
    # As the server has asked for, which is told before the next headers.
    encoder.header_table_size = 0
    return b"".join(
        (
            frames.PREFACE,
            frames.settings({0x5: 65_536}),
            first,
            frames.frame(frames.SETTINGS, frames.ACK, 0),
            data(1, message(b"one")[:3]),
            frames.frame(frames.PING, 0, 0, b"are you?"),
            begins(3, encoder),
            data(1, message(b"one")[3:] + message(b"two")),
            frames.frame(0x42, 0, 0, b"nobody knows this one"),
            data(3, bytes((2,)) + message(b"three") + bytes(2), frames.PADDED),
            data(3, b"", frames.END_STREAM),
            frames.numbered(frames.RST_STREAM, 1, 8),
            data(1, message(b"too late")),
        )
    )


@given(st.lists(st.integers(0, len(told())), max_size=12))
def test_it_is_all_the_same_where_the_pieces_begin_and_end(cuts: list[int]) -> None:
    whole = told()
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(places)]
    echoes, answers, wire = asyncio.run(tell(*pieces))
    assert [each.heard for each in echoes] == [[b"one", b"two"], [b"three"]]
    assert [each.left_times for each in echoes] == [1, 1]
    assert not wire.is_shut
    said = {(kind, stream, payload) for kind, _, stream, payload in answers}
    assert (frames.PING, 0, b"are you?") in said
    assert {(frames.DATA, 1, message(b"one")), (frames.DATA, 3, message(b"three"))} <= said
    # To the one that ended in good order, and not to the one that was reset.
    trailers = [each for each in answers if each[1] & frames.END_STREAM and each[0] == 1]
    assert [stream for _, _, stream, _ in trailers] == [3]


async def test_answers_keep_to_the_callers_windows() -> None:
    size = 3 * frames.FIRST_WINDOW_BYTES
    settings = frames.settings({frames.INITIAL_WINDOW_SIZE: 10})
    first = frames.PREFACE + settings + begins(1, Encoder())
    parts = [message(bytes(size))[at : at + 10_000] for at in range(0, size + 5, 10_000)]
    asked = first + b"".join(data(1, part) for part in parts)

    def sent(answers: list[frames.Frame]) -> int:
        return sum(len(payload) for kind, _, _, payload in answers if kind == frames.DATA)

    _, answers, _ = await tell(asked)
    assert sent(answers) == 10
    more = frames.numbered(frames.WINDOW_UPDATE, 1, 90)
    _, answers, _ = await tell(asked, more)
    assert sent(answers) == 100
    # The window of the connection is the narrower one then, until that grows.
    more += frames.settings({frames.INITIAL_WINDOW_SIZE: 10 * size})
    _, answers, _ = await tell(asked, more)
    assert sent(answers) == frames.FIRST_WINDOW_BYTES
    more += frames.numbered(frames.WINDOW_UPDATE, 0, 10 * size)
    end = data(1, b"", frames.END_STREAM)
    _, answers, _ = await tell(asked, end, more)
    assert sent(answers) == size + 5
    assert answers[-1][:3] == (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFACE + frames.frame(frames.PUSH_PROMISE, 0, 1),
        frames.PREFACE + bytes((1, 0, 0)) + bytes(6),
        frames.PREFACE + frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\0"),
        frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, b"\0"),
        frames.PREFACE + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1),
        frames.PREFACE + frames.frame(frames.HEADERS, 0, 1) + data(1, b""),
        frames.PREFACE + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff"),
        frames.PREFACE + frames.frame(frames.HEADERS, frames.PADDED, 1, b"\x09"),
        frames.PREFACE + b"".join(
            frames.frame(kind, 0, 1, bytes(16_000))
            for kind in (frames.HEADERS, *[frames.CONTINUATION] * 5)
        ),
    ],
)  # fmt: skip
async def test_what_no_client_may_say_ends_the_connection(wrong: bytes) -> None:
    _, answers, wire = await tell(wrong)
    assert wire.is_shut
    assert answers[-1][0] == frames.GOAWAY


async def test_a_message_that_is_too_long_is_refused_before_it_has_come() -> None:
    length = (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big")
    begun = frames.PREFACE + begins(1, Encoder())
    (echo,), answers, _ = await tell(begun + data(1, b"\0" + length + b"xx"))
    assert (echo.heard, echo.left_times) == ([], 1)
    ends = [payload for kind, flags, _, payload in answers if kind == 1 and flags & 1]
    assert ends[0].endswith(b"grpc-status\x018")


def test_no_payload_is_all_padding() -> None:
    with pytest.raises(FrameError):
        frames.content(frames.PADDED, b"")
    assert frames.content(frames.PADDED, b"\x02ab\0\0") == b"ab"
