"""An engine of which only the messages are there, for a front that runs in the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from fastgen_api.spec import SLO
from fastgen_runtime.engine.channel import Abort, Add, Command, Ready, Refused, Report
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.engine.request import FinishReason, NewRequest, NewToken, Refusal, RefusalKind
from fastgen_runtime.front.answer import Delta
from fastgen_runtime.front.finished import FinishedRequest
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import Generation, TokenPrompt
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.stream import Stream
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.sources.fetch import SMOLLM2, fetch

ASKED = Generation(TokenPrompt([504, 3575]), max_tokens=9, request_id="mine", protocol="grpc")


@cache
def smollm2() -> Checkpoint:
    return open_checkpoint(fetch(SMOLLM2))


class Engine:
    """What a front has sent, and what it is told. finished: what its observer saw."""

    def __init__(self, slo: SLO | None = None, max_waiting: int = 2, is_ready: bool = True) -> None:
        self.commands: list[Command] = []
        self.finished: list[FinishedRequest] = []
        slo = slo or SLO()
        self.front = Front(
            smollm2(), "m", 100, 2, max_waiting, Metrics("", "", slo), slo, self.commands.append,
            (self._break, self.finished.append),
        )  # fmt: skip
        if is_ready:
            self.front.handle(Ready(10, 16, 100))
            self.commands.clear()

    @property
    def requests(self) -> list[NewRequest]:
        return [command.request for command in self.commands if isinstance(command, Add)]

    @property
    def aborted(self) -> list[str]:
        return [command.request_id for command in self.commands if isinstance(command, Abort)]

    def step(self, *tokens: NewToken) -> None:
        load = Load(1, 0, 0, 9, 0)
        self.front.handle(Report(len(self.commands) + 1, load, tokens, 0, len(tokens), 1, 0.01))

    def refuse(self, request_id: str, kind: RefusalKind) -> None:
        self.front.handle(Refused(request_id, Refusal(kind, "because")))

    @asynccontextmanager
    async def open(self, **fields: Any) -> AsyncIterator[Stream]:
        async with self.front.submit(replace(ASKED, **fields)) as stream:
            yield stream

    async def answer(self, **fields: Any) -> list[Delta]:
        async with self.open(**fields) as stream:
            return [delta async for delta in stream.deltas()]

    def _break(self, request: FinishedRequest) -> None:
        raise OSError("an observer's own defect")


def token(request_id: str, token_id: int, *, is_last: bool = False, **more: Any) -> NewToken:
    return NewToken(request_id, token_id, FinishReason.LENGTH if is_last else None, **more)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
