"""The messages of a stream, each of which is let go when its reader lets it go."""

from typing import Any, Generic, Self, TypeVar

import grpc

M = TypeVar("M")


class Incoming(Generic[M]):
    """What a proxy tells on one stream, in place of the library's own iterator.

    That one keeps each message until it reads the next: of a request that waits this would be its
    body, megabytes that nobody needs.
    """

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        self._context = context

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message  # type: ignore[no-any-return]
