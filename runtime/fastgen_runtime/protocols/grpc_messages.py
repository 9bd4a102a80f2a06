"""Serves gRPC methods so that what is no message gets an answer, as any other nonsense does.

Handlers of one request never learn of a call that ends without one, nor of bytes that cannot be
read; the library logs the one as a defect and lets the other hang. On the wire one message and a
stream of one are the same, so these handlers take a stream.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from fastgen_runtime.front.generation import ErrorKind, RequestError

FIRST_MESSAGE_SECONDS: Final = 60.0
"""A call that holds no message by then is ended."""

Request = TypeVar("Request", bound=Message)


class Unreadable:
    """Stands for bytes that are no message."""


def reader(kind: type[Request]) -> Callable[[bytes], Request | Unreadable]:
    """A deserializer that raises nothing."""

    def read(data: bytes) -> Request | Unreadable:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Unreadable()

    return read


async def first_message(
    requests: AsyncIterator[Request | Unreadable], seconds: float = FIRST_MESSAGE_SECONDS
) -> Request:
    """The call's one message; raises RequestError."""
    try:
        async with asyncio.timeout(seconds):
            async for request in requests:
                if isinstance(request, Unreadable):
                    raise RequestError(
                        ErrorKind.INVALID,
                        "the message cannot be read: it is no protobuf of the method's type, "
                        "or one of its texts is not UTF-8",
                    )
                return request
    except TimeoutError as error:
        message = f"the call held no message for {seconds:g} s"
        raise RequestError(ErrorKind.DEADLINE, message) from error
    raise RequestError(ErrorKind.INVALID, "the call ended without a message")
