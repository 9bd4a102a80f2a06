"""The processes that `benchmarks/front.py` compares: `python benchmarks/front_servers.py KIND …`.

replica: the real front, whose engine process is `engine`. engine: computes nothing and sends a
token for every stream, step after step, over the real channel. bare: a grpc.aio server that sends
recorded messages at the same pace and does nothing else.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
import uvloop

from fastgen_runtime.config import EngineConfig
from fastgen_runtime.engine.channel import Abort, Add, Command, EngineEnd, Ready, Report, Stop
from fastgen_runtime.engine.engine import Load
from fastgen_runtime.engine.request import FinishReason, NewToken, Started
from fastgen_runtime.front.engine_process import EngineProcess
from fastgen_runtime.main import app
from fastgen_runtime.models.checkpoint import open_checkpoint

CHARACTERS_PER_TOKEN: Final = 4
SETTINGS: Final = "FASTGEN_BENCHMARK_FRONT"


class Settings(msgspec.Struct, frozen=True):
    """What a benchmark tells its servers, in the environment.

    Steps begin when `num_streams` requests are there. times_path: gets a line of JSON with the
    times at which steps were sent, on `time.monotonic`'s clock, after each round.
    """

    num_streams: int
    step_seconds: float
    times_path: str

    @classmethod
    def read(cls) -> "Settings":
        return msgspec.json.decode(os.environ[SETTINGS], type=cls)

    def note_times(self, times: Sequence[float]) -> None:
        with Path(self.times_path).open("a") as file:
            file.write(json.dumps(times) + "\n")


def serve_replica() -> None:
    """`fastgen-runtime`, with the engine of this file."""

    async def start(config: Any) -> EngineProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "engine", msgspec.json.encode(config).decode()
        )
        return EngineProcess(process)

    EngineProcess.start = start  # type: ignore[method-assign]
    app()


class IdleEngine:
    """Sends what an engine would, at a fixed pace."""

    def __init__(self, settings: Settings, tokens: Sequence[int]) -> None:
        self._settings = settings
        self._tokens = tokens
        self._running: dict[str, int] = {}
        self._num_commands = 0
        self._times: list[float] = []

    def take(self, command: Command) -> None:
        """Notes what the front wants; each request has `max_tokens` tokens to come."""
        self._num_commands += 1
        match command:
            case Add(request):
                self._running[request.request_id] = request.max_tokens
            case Abort(request_id):
                self._running.pop(request_id, None)

    def wait(self) -> float:
        """Sleeps until the next step; how long commands may be waited for then."""
        if not self._times:
            return 0.01
        next_step = self._times[0] + len(self._times) * self._settings.step_seconds
        time.sleep(max(0.0, next_step - time.monotonic()))
        return 0.0

    def report(self) -> Report:
        """A token for each stream, once all of them are there."""
        load = Load(len(self._running), 0, 0, 500, 0)
        if not self._times and len(self._running) < self._settings.num_streams:
            return Report(self._num_commands, load)
        tokens = tuple(self._next(place, key) for place, key in enumerate(list(self._running)))
        seconds = self._settings.step_seconds
        self._times.append(time.monotonic())
        return Report(self._num_commands, load, tokens, 0, len(tokens), len(tokens), seconds)

    def end_round(self) -> None:
        """Tells the times of a round whose streams have all ended."""
        if self._times and not self._running:
            self._settings.note_times(self._times)
            self._times = []

    def _next(self, place: int, request_id: str) -> NewToken:
        self._running[request_id] -= 1
        is_last = not self._running[request_id]
        if is_last:
            del self._running[request_id]
        return NewToken(
            request_id,
            self._tokens[(7 * len(self._times) + place) % len(self._tokens)],
            FinishReason.LENGTH if is_last else None,
            started=None if self._times else Started(0.0, 0),
        )


def run_engine() -> None:
    """The engine process: IdleEngine, with tokens of four characters each."""
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    vocabulary = open_checkpoint(Path(config.model_path)).tokenizer.get_vocab()
    tokens = sorted(
        number
        for token, number in vocabulary.items()
        if re.fullmatch(f"Ġ[a-zA-Z]{{{CHARACTERS_PER_TOKEN - 1}}}", token)
    )
    engine = IdleEngine(Settings.read(), tokens)
    channel = EngineEnd(config.channel)
    channel.send(Ready(num_blocks=1000, block_size=64, max_length=config.max_length))
    while os.getppid() == config.parent_pid:
        for command in channel.commands(engine.wait()):
            if isinstance(command, Stop):
                return
            engine.take(command)
        channel.send(engine.report())
        engine.end_round()


class Bare:
    """Sends the recorded messages of each stream, one per step, once all streams are open."""

    def __init__(self, settings: Settings, streams: Sequence[Sequence[bytes]]) -> None:
        self._settings = settings
        self._streams = streams
        self._num_open = 0
        self._num_steps = 0
        self._step = asyncio.Event()

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        messages = self._streams[self._num_open]
        self._num_open += 1
        if self._num_open == self._settings.num_streams:
            self._beating = asyncio.create_task(self._beat(max(map(len, self._streams))))
        for number, message in enumerate(messages):
            while self._num_steps <= number:
                await self._step.wait()
            yield message

    async def _beat(self, num_steps: int) -> None:
        times = [time.monotonic()]
        for number in range(1, num_steps + 1):
            self._num_steps = number
            step, self._step = self._step, asyncio.Event()
            step.set()
            next_step = times[0] + number * self._settings.step_seconds
            await asyncio.sleep(max(0.0, next_step - time.monotonic()))
            times.append(time.monotonic())
        self._settings.note_times(times[:num_steps])


def recorded_streams(path: Path) -> list[list[bytes]]:
    """Hexadecimal messages, a line of JSON per stream."""
    lines = path.read_text().splitlines()
    return [[bytes.fromhex(message) for message in json.loads(line)] for line in lines]


async def serve_bare(streams: Sequence[Sequence[bytes]]) -> None:
    """Serves until it is ended; prints its port."""
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(
        Bare(Settings.read(), streams).stream
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bare.Server", {"Stream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    match sys.argv[1]:
        case "replica":
            del sys.argv[1]
            serve_replica()
        case "engine":
            run_engine()
        case "bare":
            uvloop.run(serve_bare(recorded_streams(Path(sys.argv[2]))))
