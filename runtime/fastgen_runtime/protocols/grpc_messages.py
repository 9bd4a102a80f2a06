"""Serves gRPC methods so that what is no message gets an answer, as any other nonsense does.

Handlers of one request never learn of a call that ends without one, nor of bytes that cannot be
read; the library logs the one as a defect and lets the other hang. On the wire one message and a
stream of one are the same, so these handlers take a stream.

The library answers a compressed message that grows too long with RESOURCE_EXHAUSTED, which a
balancer takes for a full replica and tries elsewhere. So messages come here as they were sent
(UNOPENED) and are opened here, no further than to a limit.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from fastgen_runtime.front.generation import ErrorKind, RequestError

FIRST_MESSAGE_SECONDS: Final = 60.0
"""A call that holds no message by then is ended."""

_GZIP: Final = b"\x1f\x8b"
"""How gzip begins (RFC 1952), and no protobuf does: its first byte names a wire type 7."""
_GZIP_WINDOW: Final = 31
"""zlib's name for a window of 32 KiB with gzip's header."""
UNOPENED: Final = (
    ("grpc.per_message_decompression", 0),
    # Sent as they are (bit 0) or by gzip (bit 2); a message by deflate could be no compressed one.
    ("grpc.compression_enabled_algorithms_bitset", 0b101),
)
"""Options of a server whose messages are opened here; it answers others with UNIMPLEMENTED."""

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]  # generic in the library's types only

Request = TypeVar("Request", bound=Message)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for bytes that are no message; why: to be told to the client."""

    kind: ErrorKind
    why: str


_NO_MESSAGE: Final = Unreadable(
    ErrorKind.INVALID,
    "the message cannot be read: it is no protobuf of the method's type, "
    "or one of its texts is not UTF-8",
)


def reader(kind: type[Request], max_bytes: int) -> Callable[[bytes], Request | Unreadable]:
    """A deserializer that raises nothing; max_bytes: what it takes once it is opened."""

    def read(data: bytes) -> Request | Unreadable:
        opened = _opened(data, max_bytes)
        if isinstance(opened, Unreadable):
            return opened
        try:
            return kind.FromString(opened)
        except DecodeError:
            return _NO_MESSAGE

    return read


def _opened(data: bytes, max_bytes: int) -> bytes | Unreadable:
    if not data.startswith(_GZIP):
        return data
    opener = zlib.decompressobj(_GZIP_WINDOW)
    try:
        opened = opener.decompress(data, max_bytes + 1)
    except zlib.error:
        return _NO_MESSAGE
    if len(opened) > max_bytes:
        why = f"the message, once decompressed, is larger than the {max_bytes} bytes that are taken"
        return Unreadable(ErrorKind.TOO_LARGE, why)
    return opened if opener.eof and not opener.unused_data else _NO_MESSAGE


class Opener(grpc.aio.ServerInterceptor):
    """Opens the messages of services whose handlers are not ours.

    service: ours, whose own readers open them.
    """

    def __init__(self, service: str, max_bytes: int) -> None:
        self._ours = f"/{service}/"
        self._max_bytes = max_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        # A named tuple, which the library's types do not tell.
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_deserializer is None or method.startswith(self._ours):
            return handler  # type: ignore[no-any-return]
        deserialize = handler.request_deserializer

        def read(data: bytes) -> Any:
            opened = _opened(data, self._max_bytes)
            return deserialize(data if isinstance(opened, Unreadable) else opened)

        return handler._replace(request_deserializer=read)  # type: ignore[no-any-return]


async def first_message(
    requests: AsyncIterator[Request | Unreadable], seconds: float = FIRST_MESSAGE_SECONDS
) -> Request:
    """The call's one message; raises RequestError."""
    try:
        async with asyncio.timeout(seconds):
            async for request in requests:
                if isinstance(request, Unreadable):
                    raise RequestError(request.kind, request.why)
                return request
    except TimeoutError as error:
        message = f"the call held no message for {seconds:g} s"
        raise RequestError(ErrorKind.DEADLINE, message) from error
    raise RequestError(ErrorKind.INVALID, "the call ended without a message")
