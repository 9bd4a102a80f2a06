"""A receiver of the call server that answers with what it gets."""

import asyncio

from fastgen_balancer.calls import Caller

PATH = "/test.Service/Echo"


class Echo:
    """Sends back what it gets, and notes when its caller has left."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.heard: list[bytes] = []
        self.left_times = 0
        self.gone = asyncio.Event()

    def receive(self, message: bytes) -> None:
        self.heard.append(message)
        if message == b"fall":
            raise ValueError("as it was asked to")
        self.caller.send(message)

    def left(self) -> None:
        self.left_times += 1
        self.gone.set()
        if self.heard[-1:] == [b"fall at the end"]:
            raise ValueError("as it was asked to")


class Echoes:
    """A method whose calls are kept."""

    def __init__(self) -> None:
        self.all: list[Echo] = []

    def __call__(self, caller: Caller) -> Echo:
        self.all.append(Echo(caller))
        return self.all[-1]
