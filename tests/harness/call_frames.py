"""Frames for the call server, as a client of any kind may send them, and what it answers."""

import asyncio
from typing import Any

from echo_calls import PATH, Echo, Echoes
from hpack.hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from fastgen_balancer.call_server import Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16_384


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


def frames_of(sent: bytes) -> list[Frame]:
    found = []
    while sent:
        frame, length = Frame.parse_frame_header(memoryview(sent[:9]))
        frame.parse_body(memoryview(sent[9 : 9 + length]))
        found.append(frame)
        sent = sent[9 + length :]
    return found


async def tell(*pieces: bytes) -> tuple[list[Echo], list[Frame], Wire]:
    """The receivers, and the frames that a connection answers to these bytes."""
    echoes, wire = Echoes(), Wire()
    connection = Connection({PATH: echoes}, set())
    connection.connection_made(wire)
    for piece in pieces:
        if not wire.is_shut:
            connection.data_received(piece)
            await asyncio.sleep(0)
    return echoes.all, frames_of(bytes(wire.sent)), wire


def message(text: bytes) -> bytes:
    return b"\0" + len(text).to_bytes(4, "big") + text


def data(stream: int, payload: bytes, *flags: str, pad: int = 0) -> bytes:
    return DataFrame(stream, payload, pad_length=pad, flags=flags).serialize()


def begins(stream: int, encoder: Encoder, *flags: str, path: str = PATH) -> bytes:
    """A request's headers in two frames, with all that these may have."""
    block = encoder.encode([(":method", "POST"), (":path", path), ("te", "trailers")])
    half = len(block) // 2
    flags = ("PADDED", "PRIORITY", *flags)
    first = HeadersFrame(stream, block[:half], pad_length=3, stream_weight=16, flags=flags)
    rest = ContinuationFrame(stream, block[half:], flags=("END_HEADERS",))
    return first.serialize() + rest.serialize()


def opens(stream: int) -> bytes:
    """A request's headers in one frame, which change no table."""
    block = b"\x83\x04" + bytes((len(PATH),)) + PATH.encode()
    return HeadersFrame(stream, block, flags=("END_HEADERS",)).serialize()


def settings(values: dict[int, int]) -> bytes:
    return SettingsFrame(0, values).serialize()


def grows(stream: int, growth: int) -> bytes:
    return WindowUpdateFrame(stream, growth).serialize()


def reset(stream: int) -> bytes:
    return RstStreamFrame(stream, 8).serialize()


def raw(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload
