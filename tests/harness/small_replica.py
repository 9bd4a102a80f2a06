"""A small replica: the runtime's two servers without an engine, told by each request what to do."""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import uvicorn
from grpc_reflection.v1alpha import reflection
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fastgen_api.names import Header
from fastgen_api.v1 import inference_pb2 as pb
from fastgen_api.v1 import inference_pb2_grpc


class Replica(inference_pb2_grpc.InferenceServiceServicer):
    """Makes `max_tokens` words, `gap` seconds apart, the first after `first` seconds.

    Over gRPC `break=N` ends the stream with UNAVAILABLE after N words.
    """

    def __init__(self, name: str, capacity: int = 64) -> None:
        self.name = name
        self.capacity = capacity
        self.running = 0
        self.extra_load = 0
        self.owed = 0
        self.draining = False
        self.crash_on: str | None = None
        self.refuse = False
        self.silent = False
        self.lag = 0.0
        """Seconds before each first word, whatever the request says."""
        self.seen: list[dict[str, str]] = []
        self.aborted = 0

    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.GetLoadResponse:  # noqa: N802
        if self.silent:
            await asyncio.sleep(30)
        return pb.GetLoadResponse(
            running_requests=self.running + self.extra_load,
            owed_tokens=self.owed,
            max_concurrent_requests=self.capacity,
            total_blocks=100,
            free_blocks=50,
            draining=self.draining,
        )

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        pairs = context.invocation_metadata() or ()
        self.seen.append({key: value for key, value in pairs if isinstance(value, str)})
        self._crash(request.text)
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        with self._counted():
            first, gap = timing(request.text)
            await asyncio.sleep(first + self.lag)
            await context.send_initial_metadata(
                ((Header.REPLICA, self.name), (Header.PROMPT_TOKENS, "10"))
            )
            for i in range(request.stopping.max_tokens):
                if f"break={i}" in request.text.split():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine has died")
                yield pb.GenerateResponse(text=f"w{i} ", token_ids=[i])
                await asyncio.sleep(gap)

    async def complete(self, request: Request) -> Response:
        self.seen.append(dict(request.headers))
        body = await request.json()
        self._crash(body["prompt"])
        if self.refuse:
            return JSONResponse({"error": {"message": "full"}}, status_code=429)
        first, gap = timing(body["prompt"])

        async def words() -> AsyncIterator[bytes]:
            with self._counted():
                for i in range(body["max_tokens"]):
                    if i:
                        await asyncio.sleep(gap)
                    chunk = {"choices": [{"index": 0, "text": f"w{i} "}]}
                    yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
                yield b"data: [DONE]\n\n"

        await asyncio.sleep(first + self.lag)
        headers = {Header.REPLICA: self.name, Header.PROMPT_TOKENS: "10"}
        return StreamingResponse(words(), media_type="text/event-stream", headers=headers)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": []}, headers={Header.REPLICA: self.name})

    def _crash(self, prompt: str) -> None:
        if self.crash_on is not None and self.crash_on in prompt:
            os._exit(9)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            self.running -= 1


class _WebServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the process that it is part of."""
        yield


def timing(prompt: str) -> tuple[float, float]:
    """Reads `first=S gap=S` from a prompt."""
    words = dict(word.split("=") for word in prompt.split() if "=" in word)
    return float(words.get("first", 0)), float(words.get("gap", 0))


@contextlib.asynccontextmanager
async def serving(replica: Replica, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serves until the block ends; yields HOST:HTTP_PORT:GRPC_PORT."""
    grpc_server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(replica, grpc_server)
    names = ("fastgen.v1.InferenceService", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, grpc_server)
    grpc_port = grpc_server.add_insecure_port(f"{host}:0")
    await grpc_server.start()
    listener = socket.create_server((host, 0))
    app = Starlette(
        routes=[
            Route("/v1/completions", replica.complete, methods=["POST"]),
            Route("/v1/models", replica.models),
        ]
    )
    server = _WebServer(uvicorn.Config(app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"{host}:{listener.getsockname()[1]}:{grpc_port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        await grpc_server.stop(0)


@contextlib.asynccontextmanager
async def replica_process(
    name: str, crash_on: str = "poison", host: str = "127.0.0.1", within: tuple[str, ...] = ()
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A replica in a process of its own: its address, and the process.

    within: a command that runs it, as in another network namespace.
    """
    process = await asyncio.create_subprocess_exec(
        *(*within, sys.executable, __file__, name, crash_on, host), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip(), process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def main() -> None:
    """Serves as a process of its own, to be killed: `python replica.py NAME CRASH_ON HOST`."""
    replica = Replica(sys.argv[1])
    replica.crash_on = sys.argv[2]
    async with serving(replica, sys.argv[3]) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
