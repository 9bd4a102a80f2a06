"""The engine process' program: loads the model, then beats until it is told to stop.

`python -m fastgen_runtime.engine_main CONFIG`, with an EngineConfig as JSON. It inherits nothing
from the front but its log, and dies with it.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from fastgen_api.names import StartupFailure
from fastgen_api.spec import BudgetMode, most_step_tokens
from fastgen_runtime.config import EngineConfig
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.channel import (
    Abort,
    Add,
    EngineEnd,
    EngineFailed,
    Ready,
    Refused,
    Report,
    SetPace,
    StartFailed,
    Stop,
)
from fastgen_runtime.engine.engine import Beat, Engine, Load
from fastgen_runtime.engine.grammar import GrammarCompiler
from fastgen_runtime.engine.grammar_queue import GrammarQueue
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.rank_channel import RankError
from fastgen_runtime.engine.request import Refusal, RefusalKind
from fastgen_runtime.log import log_event, start_logging
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.text.tokenizer import num_token_ids

IDLE_SECONDS: Final = 1.0
"""Between two signs of life when there is nothing to do."""
_COMPILING_SECONDS: Final = 0.005
"""Between two looks at the grammars that are being compiled, when there is nothing else to do."""
_PR_SET_PDEATHSIG: Final = 1
_EXPIRED: Final = Refusal(
    RefusalKind.EXPIRED, "the request's deadline passed before its answer was complete"
)


def end_with_parent(parent_pid: int) -> None:
    """Makes the kernel end this process when the front is gone, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was told
        sys.exit(1)


def load_engine(
    config: EngineConfig,
) -> tuple[Engine, GrammarQueue, Ready, Callable[[], None]]:
    """Loads the model; the last of what it returns raises RankError when another rank has ended.

    Raises StartupError, also when a rank ends before the first step.
    """
    # Set for the other ranks, too: they inherit the environment.
    cores.limit_threads(max(1, cores.available_threads() // config.tensor_parallel_size))
    checkpoint = open_checkpoint(Path(config.model_path))
    tokenizer = checkpoint.tokenizer
    # Beside the weights: its memory is to be counted before the cache takes what is left.
    grammars = GrammarQueue(lambda: GrammarCompiler(tokenizer, checkpoint.eos_token_ids))
    # Torch takes seconds to import: only the process that computes pays for it.
    from fastgen_runtime.device.runner import Runner, RunnerConfig

    runner = Runner.load(
        checkpoint,
        RunnerConfig(
            dtype=config.dtype,
            quantization=config.quantization,
            block_size=config.block_size,
            memory_percent=config.memory_percent,
            max_model_length=config.max_length,
            max_concurrent_requests=config.max_running,
            max_step_tokens=config.budget_tokens,
            least_step_tokens=_least_step_tokens(config),
            vocabulary=num_token_ids(tokenizer),
            tensor_parallel_size=config.tensor_parallel_size,
            cpu_step=config.cpu_step,
        ),
    )
    limits = Limits(
        budget_tokens=runner.step_tokens or config.budget_tokens,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_length=config.max_length,
        budget_mode=config.budget_mode,
        prefix_caching=config.prefix_caching,
        speculation=config.speculation,
    )
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    grammars.wait_until_loaded()
    ready = Ready(runner.num_blocks, runner.block_size, engine.max_length)
    return engine, grammars, ready, runner.check_ranks


def _least_step_tokens(config: EngineConfig) -> int | None:
    """Auto steps may be smaller where memory is short; Fixed ones are what was asked for."""
    if config.budget_mode is BudgetMode.FIXED:
        return None
    usual = most_step_tokens(BudgetMode.FIXED, None)
    return min(config.budget_tokens, max(usual, config.max_running))


def beat(
    engine: Engine,
    grammars: GrammarQueue,
    channel: EngineEnd,
    parent_pid: int,
    check_ranks: Callable[[], None],
) -> None:
    """Carries out commands and steps until told to stop; an exception ends the process."""
    num_commands = 0
    is_checked = False
    while os.getppid() == parent_pid:
        idle_seconds = _COMPILING_SECONDS if len(grammars) else IDLE_SECONDS
        for command in channel.commands(0 if engine.has_work else idle_seconds):
            num_commands += 1
            match command:
                case Add(request) if request.grammar is not None:
                    grammars.add(request)
                case Add(request):
                    if refusal := engine.add(request):
                        channel.send(Refused(request.request_id, refusal))
                case Abort(request_id):
                    grammars.abort(request_id)
                    engine.abort(request_id)
                case SetPace(pace):
                    engine.set_pace(pace)
                case Stop():
                    return
        _add_compiled(engine, grammars, channel)
        if engine.has_work:
            is_checked = False
            done = engine.step()
            for request_id in done.expired:
                channel.send(Refused(request_id, _EXPIRED))
            for request_id, refusal in done.committed.failed:
                channel.send(Refused(request_id, refusal))
            channel.send(_report(num_commands, _load(engine, grammars), done))
            for request_id, failure in grammars.take_failed():
                engine.abort(request_id)
                channel.send(Refused(request_id, failure))
        else:
            if not is_checked:  # once per idle time: it looks at every block
                engine.check()
                is_checked = True
            check_ranks()
            channel.send(Report(num_commands, _load(engine, grammars)))


def _add_compiled(engine: Engine, grammars: GrammarQueue, channel: EngineEnd) -> None:
    for new, compiled in grammars.take_ready():
        refusal = compiled if isinstance(compiled, Refusal) else engine.add(new, compiled)
        if refusal is not None:
            channel.send(Refused(new.request_id, refusal))


def _load(engine: Engine, grammars: GrammarQueue) -> Load:
    """The engine's; requests whose grammars are being compiled wait, too."""
    load = engine.load()
    return replace(load, num_waiting=load.num_waiting + len(grammars))


def _report(num_commands: int, load: Load, done: Beat) -> Report:
    return Report(
        num_commands=num_commands,
        load=load,
        tokens=done.committed.tokens,
        num_prompt_tokens=done.committed.num_prompt_tokens,
        num_output_tokens=done.committed.num_output_tokens,
        num_step_tokens=done.num_step_tokens,
        step_seconds=done.step_seconds,
        num_cached_tokens=done.num_cached_tokens,
        predicted_seconds=done.predicted_seconds,
        budget_tokens=done.budget_tokens,
        num_drafted_tokens=done.committed.num_drafted,
        num_accepted_tokens=done.committed.num_accepted,
    )


def main() -> None:
    """Entry point of the engine process."""
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    end_with_parent(config.parent_pid)
    start_logging("fastgen-runtime-engine")
    # Ctrl-C reaches the whole process group; the front says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = EngineEnd(config.channel)
    try:
        engine, grammars, ready, check_ranks = load_engine(config)
    except StartupError as error:
        channel.send(StartFailed(error.reason, str(error)))
        channel.close()
        sys.exit(1)
    except MemoryError:
        channel.send(StartFailed(StartupFailure.OUT_OF_MEMORY, "the model does not fit in memory"))
        channel.close()
        sys.exit(1)
    # What is loaded stays: a garbage collection that walks all of it would take many steps' time.
    gc.collect()
    gc.freeze()
    channel.send(ready)
    log_event("engine ready", blocks=ready.num_blocks, block_size=ready.block_size)
    try:
        beat(engine, grammars, channel, config.parent_pid, check_ranks)
    except RankError as error:
        channel.send(EngineFailed(str(error)))
        channel.close()
        sys.exit(1)
    grammars.close()
    channel.close()


if __name__ == "__main__":
    main()
