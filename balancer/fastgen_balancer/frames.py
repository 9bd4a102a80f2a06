"""Frames of HTTP/2 (RFC 9113), as a gRPC server on the loopback reads and writes them."""

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says first."""
DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
FRAME_SIZE_ERROR: Final = 0x6
COMPRESSION_ERROR: Final = 0x9

MAX_FRAME_BYTES: Final = 16_384
"""Of a payload, either way: nobody here has agreed to more."""
FIRST_WINDOW_BYTES: Final = 65_535
"""Of streams and connections until somebody says otherwise."""
MAX_WINDOW_BYTES: Final = 2**31 - 1
_HEAD: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">I")

Frame: TypeAlias = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""


class FrameError(Exception):
    """What a peer may not send; `code` is for GOAWAY."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame as it is sent; a payload has MAX_FRAME_BYTES at most."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A frame of settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


def numbered(kind: int, stream: int, number: int) -> bytes:
    """A frame of one number: a reset's code or a window's growth."""
    return frame(kind, 0, stream, _NUMBER.pack(number))


def goaway(last_stream: int, code: int) -> bytes:
    """The last frame to a peer that has sent what it may not."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last_stream) + _NUMBER.pack(code))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Pairs of a setting and its value; raises FrameError."""
    if len(payload) % _SETTING.size:
        raise FrameError(FRAME_SIZE_ERROR, "settings of a wrong length")
    return list(_SETTING.iter_unpack(payload))


def read_number(payload: bytes) -> int:
    """A frame's one number, 31 bits; raises FrameError."""
    if len(payload) != _NUMBER.size:
        raise FrameError(FRAME_SIZE_ERROR, "a number of a wrong length")
    return int(_NUMBER.unpack(payload)[0]) & MAX_WINDOW_BYTES


def content(flags: int, payload: bytes, *, is_headers: bool = False) -> bytes:
    """Payload of DATA or HEADERS without padding and priority; raises FrameError."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise FrameError(FRAME_SIZE_ERROR, "no length of the padding")
        start, end = 1, end - payload[0]
    if is_headers and flags & PRIORITY:
        start += 5
    if start > end:
        raise FrameError(PROTOCOL_ERROR, "more padding than payload")
    return payload[start:end]


class FrameReader:
    """Cuts what comes in at a server into frames, wherever its pieces begin and end."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_begun = False

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now; raises FrameError, and reads nothing after that."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        if not self._has_begun:
            if data[: len(PREFACE)] != PREFACE[:end]:
                raise FrameError(PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(PREFACE):
                self._rest = data
                return
            self._has_begun, at = True, len(PREFACE)
        while end - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                raise FrameError(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + _HEAD.size
            if start + length > end:
                break
            at = start + length
            yield kind, flags, stream & MAX_WINDOW_BYTES, data[start:at]
        self._rest = data[at:]
