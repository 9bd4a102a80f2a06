"""The server of Envoy's calls, told what the protocol allows, in any pieces."""

import asyncio
from itertools import pairwise

from call_frames import PREFACE, begins, data, grows, message, raw, reset, settings, tell
from hpack.hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.call_server import FIRST_WINDOW_BYTES
from fastgen_balancer.calls import MAX_MESSAGE_BYTES


def told() -> bytes:
    """Three calls, with all that the protocol allows between them."""
    encoder = Encoder()
    return b"".join(
        (
            PREFACE,
            settings({SettingsFrame.MAX_FRAME_SIZE: 65_536}),
            begins(1, encoder),
            SettingsFrame(0, flags=("ACK",)).serialize(),
            data(1, message(b"one")[:3]),
            PingFrame(0, b"are you?").serialize(),
            begins(3, encoder),
            data(1, message(b"one")[3:] + message(b"two")),
            raw(0x42, 0, b"nobody knows this one"),
            data(3, message(b"three"), "PADDED", pad=2),
            data(3, b"", "END_STREAM"),
            reset(1),
            begins(5, encoder),
            data(1, message(b"too late")),
        )
    )


@given(st.lists(st.integers(0, len(told())), max_size=12))
def test_it_is_all_the_same_where_the_pieces_begin_and_end(cuts: list[int]) -> None:
    whole = told()
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(places)]
    echoes, answers, wire = asyncio.run(tell(*pieces))
    assert [each.heard for each in echoes] == [[b"one", b"two"], [b"three"], []]
    assert [each.left_times for each in echoes] == [1, 1, 0]
    assert not wire.is_shut
    assert [each.opaque_data for each in answers if isinstance(each, PingFrame)] == [b"are you?"]
    said = {(each.stream_id, each.data) for each in answers if isinstance(each, DataFrame)}
    # The first call's only where its reset came later than they could be sent.
    assert {(3, message(b"three"))} <= said
    assert said <= {(3, message(b"three")), (1, message(b"one")), (1, message(b"two"))}
    # To the one that ended in good order, and not to the one that was reset.
    heads = [each for each in answers if isinstance(each, HeadersFrame)]
    assert [each.stream_id for each in heads if "END_STREAM" in each.flags] == [3]


async def test_answers_keep_to_the_callers_windows() -> None:
    size, narrow = 3 * FIRST_WINDOW_BYTES, SettingsFrame.INITIAL_WINDOW_SIZE
    first = PREFACE + settings({narrow: 10}) + begins(1, Encoder())
    parts = [message(bytes(size))[at : at + 10_000] for at in range(0, size + 5, 10_000)]
    asked = first + b"".join(data(1, part) for part in parts)

    def sent(answers: list[Frame]) -> int:
        return sum(len(each.data) for each in answers if isinstance(each, DataFrame))

    _, answers, _ = await tell(asked)
    assert sent(answers) == 10
    more = grows(1, 90)
    _, answers, _ = await tell(asked, more)
    assert sent(answers) == 100
    # The window of the connection is the narrower one then, until that grows.
    more += settings({narrow: 10 * size})
    _, answers, _ = await tell(asked, more)
    assert sent(answers) == FIRST_WINDOW_BYTES
    more += grows(0, 10 * size)
    _, answers, _ = await tell(asked, data(1, b"", "END_STREAM"), more)
    assert sent(answers) == size + 5
    assert isinstance(answers[-1], HeadersFrame)
    assert answers[-1].flags == {"END_HEADERS", "END_STREAM"}


async def test_a_message_that_is_too_long_is_refused_before_it_has_come() -> None:
    length = (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big")
    begun = PREFACE + begins(1, Encoder())
    (echo,), answers, _ = await tell(begun + data(1, b"\0" + length + b"xx"))
    assert (echo.heard, echo.left_times) == ([], 1)
    (end,) = [each for each in answers if isinstance(each, HeadersFrame)]
    assert "END_STREAM" in end.flags
    assert ("grpc-status", "8") in Decoder().decode(end.data)
