"""The processes that `benchmarks/front.py` compares: `python benchmarks/front_servers.py KIND …`.

replica: the real front, whose engine process is `engine`. engine: computes nothing and sends a
token for every stream, step after step, over the real channel. bare: a grpc.aio server that sends
recorded messages at the same pace and does nothing else.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
import uvloop

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
    from fastgen_runtime.engine_process import EngineProcess
    from fastgen_runtime.main import app

    async def start(config: Any) -> EngineProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "engine", msgspec.json.encode(config).decode()
        )
        return EngineProcess(process)

    EngineProcess.start = start  # type: ignore[method-assign,assignment]
    app()


def run_engine() -> None:
    """Sends what an engine would; its tokens have four characters each."""
    from fastgen_runtime.channel import Abort, Add, EngineEnd, Ready, Report, Stop
    from fastgen_runtime.checkpoint import open_checkpoint
    from fastgen_runtime.config import EngineConfig
    from fastgen_runtime.engine import Load
    from fastgen_runtime.request import FinishReason, NewRequest, NewToken, Started

    settings = Settings.read()
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    vocabulary = open_checkpoint(Path(config.model_path)).tokenizer.get_vocab()
    tokens = sorted(
        number for token, number in vocabulary.items()
        if len(token) == CHARACTERS_PER_TOKEN and token[0] == "Ġ" and token[1:].isalpha()
        and token[1:].isascii()
    )  # fmt: skip
    channel = EngineEnd(config.channel)
    channel.send(Ready(num_blocks=1000, block_size=64, max_length=config.max_length))
    running: dict[str, NewRequest] = {}
    counts: dict[str, int] = {}
    num_commands = 0
    times: list[float] = []
    while os.getppid() == config.parent_pid:
        if times:
            next_step = times[0] + len(times) * settings.step_seconds
            time.sleep(max(0.0, next_step - time.monotonic()))
        for command in channel.commands(0.0 if times else 0.01):
            num_commands += 1
            match command:
                case Add(request):
                    running[request.request_id] = request
                    counts[request.request_id] = 0
                case Abort(request_id):
                    running.pop(request_id, None)
                case Stop():
                    return
        load = Load(len(running), 0, 0, 500, 0)
        if not times and len(running) < settings.num_streams:
            channel.send(Report(num_commands, load))
            continue
        new_tokens = []
        for place, request in enumerate(list(running.values())):
            request_id = request.request_id
            counts[request_id] += 1
            is_last = counts[request_id] == request.max_tokens
            new_tokens.append(
                NewToken(
                    request_id,
                    tokens[(7 * len(times) + place) % len(tokens)],
                    FinishReason.LENGTH if is_last else None,
                    started=Started(0.0, 0) if not times else None,
                )
            )
            if is_last:
                del running[request_id]
        report = Report(
            num_commands, load, tuple(new_tokens), 0, len(new_tokens), len(new_tokens),
            settings.step_seconds,
        )  # fmt: skip
        times.append(time.monotonic())
        channel.send(report)
        if not running:
            settings.note_times(times)
            times = []


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
    handler = grpc.unary_stream_rpc_method_handler(Bare(Settings.read(), streams).stream)
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
