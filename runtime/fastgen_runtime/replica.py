"""A replica: one front in this process, one engine in another, from start to drain."""

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from contextlib import closing
from typing import Any, Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.config import Config, EngineConfig, MetricAliases, replica_name
from fastgen_runtime.engine.channel import EngineFailed, FrontEnd, Ready, StartFailed, Stop
from fastgen_runtime.front.engine_process import EngineProcess
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.metric_aliases import add_vllm_aliases
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.request_log import log_request
from fastgen_runtime.front.slo_file import read_slo, watch_slo
from fastgen_runtime.front.tracing import start_tracing
from fastgen_runtime.log import log_event, log_problem
from fastgen_runtime.models.capacity import model_length
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.models.shard import check_size
from fastgen_runtime.protocols.grpc_server import GrpcServer
from fastgen_runtime.protocols.http_server import HttpServer
from fastgen_runtime.sources.fetch import fetch, model_name
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.termination import leave_message

_LAST_WORDS_SECONDS: Final = 0.5
_FLUSH_SECONDS: Final = 2.0
"""For the last bytes of streams that end because the replica does."""


class Replica:
    """The parts of a replica and the tasks that keep them going."""

    def __init__(self, config: Config, front: Front, channel: FrontEnd) -> None:
        self._config = config
        self._front = front
        self._channel = channel
        name = replica_name()
        self._http = HttpServer(front, name)
        self._grpc = GrpcServer(front, name)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_words: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self, engine: EngineProcess) -> int:
        """Serves until a signal or the engine's end; the process' exit code.

        Raises StartupError when it never came to serve.
        """
        died = self._start(self._end_of(engine))
        stopping = self._start(self._stop.wait())
        try:
            self._bind()
            self._catch_signals()
            parts = await self._start_parts()
            await _first_of(died, stopping, self._ready, *parts)
            if died.done():
                # Its last words may still be on their way.
                await asyncio.wait((self._ready,), timeout=_LAST_WORDS_SECONDS)
            if self._ready.done():
                self._ready.result()
                log_event("serving", model=self._front.served_name)
                await _first_of(died, stopping, *parts)
            elif died.done():
                raise engine.why_not_started(died.result())
            for part in parts:
                if part.done():
                    part.result()
            return await self._drain(died) if not died.done() else await self._mourn(died)
        finally:
            await self._close(engine)

    def _bind(self) -> None:
        config = self._config
        try:
            http_port = self._http.bind(config.host, config.http_port)
            grpc_port = self._grpc.bind(config.host, config.grpc_port)
            more = {}
            if config.metrics_port is not None:
                metrics_port = self._http.bind_metrics(config.host, config.metrics_port)
                more["metrics"] = f"{config.host}:{metrics_port}"
        except OSError as error:
            raise StartupError(
                StartupFailure.CONFIG_INVALID, f"a port cannot be listened on: {error}"
            ) from error
        host = f"[{config.host}]" if ":" in config.host else config.host
        url, grpc = f"http://{host}:{http_port}/v1", f"{host}:{grpc_port}"
        log_event("listening", url=url, grpc=grpc, **more)

    async def _start_parts(self) -> list[asyncio.Task[Any]]:
        """The tasks without which there is no replica: when one ends, all do."""
        await self._grpc.start()
        parts = [self._http.serve(), self._grpc.follow_health(), self._listen()]
        if self._config.slo_file is not None:
            parts.append(watch_slo(self._config.slo_file, self._front.set_slo))
        return [self._start(part) for part in parts]

    async def _end_of(self, engine: EngineProcess) -> str:
        """Waits for it; says how it ended, by its own account if it gave one."""
        words = await engine.wait()
        if not engine.was_killed:
            await asyncio.wait((self._last_words,), timeout=_LAST_WORDS_SECONDS)
        return self._last_words.result() if self._last_words.done() else words

    async def _mourn(self, died: asyncio.Task[str]) -> int:
        """The engine is gone: its requests are told, and the pod starts anew."""
        log_problem(died.result())
        leave_message(StartupFailure.ENGINE_FAILED, died.result())
        self._front.fail(died.result())
        await self._front.wait_until_idle(_FLUSH_SECONDS)
        return 1

    async def _drain(self, died: asyncio.Task[str]) -> int:
        """Refuses new requests, and lets the running ones end for as long as they may."""
        self._front.draining = True
        await self._grpc.tell_health()
        log_event("draining", seconds=self._config.drain_seconds)
        idle = self._start(self._front.wait_until_idle(self._config.drain_seconds))
        await _first_of(idle, died)
        if died.done():
            return await self._mourn(died)
        if not idle.result():
            log_event("drain took too long, streams are cut")
            self._front.fail("the replica has shut down")
            await self._front.wait_until_idle(_FLUSH_SECONDS)
        log_event("drained")
        return 0

    async def _close(self, engine: EngineProcess) -> None:
        self._channel.send(Stop())
        await asyncio.gather(self._http.stop(), self._grpc.stop(_FLUSH_SECONDS), engine.stop())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._front.close()

    async def _listen(self) -> None:
        async for event in self._channel.events():
            if isinstance(event, StartFailed):
                error = StartupError(StartupFailure(event.reason), event.sentence)
                self._ready.set_exception(error)
                continue
            if isinstance(event, EngineFailed):
                self._last_words.set_result(event.sentence)
                continue
            self._front.handle(event)
            if isinstance(event, Ready):
                self._channel.remove_file()
                # What is loaded stays: a garbage collection that walks it would hold up streams.
                gc.collect()
                gc.freeze()
                self._ready.set_result(None)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def _catch_signals(self) -> None:
        def stop(number: int) -> None:
            if self._stop.is_set():
                # Asked twice: ends now, and the kernel ends the engine with it.
                os._exit(128 + number)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)


async def _first_of(*tasks: asyncio.Future[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def run_replica(config: Config) -> int:
    """Runs a replica to its end and returns the exit code; raises StartupError."""
    config.check()
    slo = read_slo(config.slo_file)
    path = fetch(config.model)
    checkpoint = open_checkpoint(path)
    with closing(FrontEnd()) as channel:
        engine_config = _engine_config(config, checkpoint, channel.address)
        # The engine loads while the front does, and is started before there are gRPC threads.
        engine = await EngineProcess.start(engine_config)
        metrics = Metrics(config.deployment, config.namespace, slo)
        spans = start_tracing(os.environ, replica_name(), config.deployment, config.namespace)
        front = Front(
            checkpoint,
            served_name=config.served_name or model_name(config.model, path),
            max_length=engine_config.max_length,
            max_running=engine_config.max_running,
            max_waiting=engine_config.max_waiting,
            metrics=metrics,
            slo=slo,
            send=channel.send,
            observers=(log_request, metrics.note_request, *((spans,) if spans else ())),
        )
        if config.metric_aliases is MetricAliases.VLLM:
            add_vllm_aliases(metrics, front.served_name, front.load)
        try:
            return await Replica(config, front, channel).run(engine)
        finally:
            if spans is not None:
                await spans.close(_FLUSH_SECONDS)


def _engine_config(config: Config, checkpoint: Checkpoint, address: str) -> EngineConfig:
    check_size(checkpoint.config, config.tensor_parallel_size, "--tensor-parallel-size")
    return EngineConfig(
        model_path=str(checkpoint.path),
        dtype=config.dtype,
        quantization=config.quantization,
        max_length=model_length(checkpoint.config, config.max_model_length),
        max_running=config.max_running,
        max_waiting=config.max_running,
        budget_tokens=config.budget_tokens,
        budget_mode=config.token_budget_mode,
        prefix_caching=config.prefix_caching,
        speculation=config.speculation,
        block_size=config.kv_block_size,
        memory_percent=config.memory_percent,
        tensor_parallel_size=config.tensor_parallel_size,
        cpu_step=config.cpu_step,
        channel=address,
        parent_pid=os.getpid(),
    )
