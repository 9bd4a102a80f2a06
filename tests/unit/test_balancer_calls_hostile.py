"""The server of Envoy's calls, told what no client may say, and too much of what each may."""

import asyncio
import socket

import pytest
from call_frames import (
    MAX_FRAME_BYTES,
    PREFACE,
    Wire,
    data,
    frames_of,
    grows,
    message,
    opens,
    raw,
    reset,
    settings,
    tell,
)
from echo_calls import PATH, Echoes
from h2.errors import ErrorCodes
from hpack.hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.call_server import MAX_STREAMS, MAX_WINDOW_BYTES, WINDOW_BYTES, Connection

WRONG = {
    "headers that do not go on": HeadersFrame(1).serialize() + data(1, b"x"),
    "headers that have not begun": ContinuationFrame(1, flags=("END_HEADERS",)).serialize(),
    "headers without an end": HeadersFrame(1).serialize() + 65 * ContinuationFrame(1).serialize(),
    "headers that do not read": raw(0x1, 1, b"\xff\xff\xff", flags=0x4),
    "more padding than payload": raw(0x1, 1, b"\x09", flags=0x8),
    "no length of the padding": opens(1) + raw(0x0, 1, b"", flags=0x8),
    "a number of the server's": opens(2),
    "a number that was passed by": opens(3) + opens(1),
    "a call that has not begun": data(1, b"x"),
    "a promise": PushPromiseFrame(1, 2, flags=("END_HEADERS",)).serialize(),
    "a frame of over 16 KiB": opens(1) + raw(0x0, 1, bytes(MAX_FRAME_BYTES + 1)),
    "a growth of a wrong length": raw(0x8, 0, b"\0"),
    "no growth": raw(0x8, 0, bytes(4)),
    "a window beyond the limit": grows(0, MAX_WINDOW_BYTES),
    "settings of a wrong length": raw(0x4, 0, b"\0"),
    "a setting beyond the limit": settings({SettingsFrame.INITIAL_WINDOW_SIZE: 2**31}),
    "a ping of a wrong length": raw(0x6, 0, b"\0"),
    "too many calls at once": b"".join(opens(2 * each + 1) for each in range(MAX_STREAMS + 1)),
    "more than the window": opens(1)
    + data(1, bytes(MAX_FRAME_BYTES)) * (WINDOW_BYTES // MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_no_client_may_say_ends_the_connection(wrong: bytes) -> None:
    good = PREFACE + settings({})
    echoes, answers, wire = await tell(good, wrong)
    assert wire.is_shut
    assert all(each.left_times == 1 for each in echoes)
    assert isinstance(answers[-1], GoAwayFrame)
    assert answers[-1].error_code != ErrorCodes.NO_ERROR


async def test_headers_beyond_the_limit_end_the_connection() -> None:
    """A few bytes that name a long header of the table again and again, as a bomb does."""
    encoder = Encoder()
    block = encoder.encode([("bomb", "x" * 4000)]) + 20 * b"\xbe"
    headers = HeadersFrame(1, block, flags=("END_HEADERS",)).serialize()
    echoes, answers, wire = await tell(PREFACE + settings({}) + headers)
    assert (wire.is_shut, echoes) == (True, [])
    assert isinstance(answers[-1], GoAwayFrame)
    assert answers[-1].error_code == ErrorCodes.ENHANCE_YOUR_CALM


async def test_whoever_does_not_speak_http2_is_hung_up_on() -> None:
    _, _, wire = await tell(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.is_shut


async def test_a_caller_that_says_goodbye_has_left_all_calls() -> None:
    goodbye = GoAwayFrame(0).serialize()
    (echo,), _, wire = await tell(PREFACE + opens(1) + data(1, message(b"one")), goodbye)
    assert (echo.heard, echo.left_times, wire.is_shut) == ([b"one"], 1, True)


async def test_a_calls_window_beyond_the_limit_ends_that_call_alone() -> None:
    begun = PREFACE + opens(1) + opens(3)
    told = data(1, message(b"one")), data(3, message(b"three"))
    echoes, answers, wire = await tell(begun, grows(1, MAX_WINDOW_BYTES), *told)
    resets = [each for each in answers if isinstance(each, RstStreamFrame)]
    assert (resets[0].stream_id, resets[0].error_code) == (1, ErrorCodes.FLOW_CONTROL_ERROR)
    assert [each.heard for each in echoes] == [[], [b"three"]]
    assert [each.left_times for each in echoes] == [1, 0]
    assert not wire.is_shut


async def test_calls_that_are_reset_at_once_leave_nothing_behind() -> None:
    echoes, wire = Echoes(), Wire()
    connection = Connection({PATH: echoes}, set())
    connection.connection_made(wire)
    connection.data_received(PREFACE + settings({}))
    for each in range(2 * MAX_STREAMS):
        connection.data_received(opens(2 * each + 1) + reset(2 * each + 1))
    last = 4 * MAX_STREAMS + 1
    connection.data_received(opens(last) + data(last, message(b"well?")))
    await asyncio.sleep(0)
    assert [each.left_times for each in echoes.all] == [1] * 2 * MAX_STREAMS + [0]
    assert list(connection.http.streams) == [last]
    answer = frames_of(bytes(wire.sent))[-1]
    assert isinstance(answer, DataFrame)
    assert answer.data == message(b"well?")


@given(
    st.lists(
        st.builds(raw, st.integers(0, 10), st.integers(0, 5), st.binary(max_size=20),
                  st.integers(0, 255)),
        max_size=8,
    )
)  # fmt: skip
def test_no_frames_get_beyond_their_connection(frames: list[bytes]) -> None:
    """Either they are borne or the connection ends: nothing is raised into the event loop."""
    echoes, _, wire = asyncio.run(tell(PREFACE, opens(1), *frames, opens(7)))
    assert wire.is_shut or len(echoes) >= 2


async def test_whoever_does_not_read_is_not_read_until_it_does() -> None:
    """A flood of pings, each of which has an answer: what waits to be sent stays bounded."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(lambda: Connection({}, set()), ours)
    reader, writer = await asyncio.open_connection(sock=theirs, limit=4096)
    ping = PingFrame(0, b"are you?").serialize()
    writer.write(PREFACE + settings({}))
    rounds, is_stuck = 0, False
    while not is_stuck and rounds < 200:
        writer.write(1000 * ping)
        rounds += 1
        try:
            await asyncio.wait_for(writer.drain(), 0.5)
        except TimeoutError:
            is_stuck = True
    assert is_stuck
    # asyncio reads 256 KiB at once, and the answer to a ping is as long as itself.
    assert transport.get_write_buffer_size() < 400_000
    await reader.readexactly(1000 * rounds * len(ping))
    writer.close()
