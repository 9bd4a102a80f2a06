"""The program of ranks 1, 2, …: computes its part of each step that rank 0 is at.

`python -m fastgen_runtime.rank_main CONFIG`, with a RankConfig as JSON. It ends when rank 0 closes
the socket between them, or is gone.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np

from fastgen_api.names import StartupFailure
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.rank_channel import (
    Begin,
    Connection,
    Failed,
    Forward,
    Loaded,
    LostError,
    RankConfig,
)
from fastgen_runtime.log import log_event, log_problem, start_logging
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.startup_error import StartupError


def end_with_leader(connection: Connection, parent_pid: int) -> None:
    """Ends this process as soon as rank 0 has, whatever it is doing then.

    Not by the kernel's signal for a parent's death: that comes when the thread ends that started
    us, and in a script it need not be the main one.
    """
    poller = select.poll()
    poller.register(connection.fileno(), 0)  # hanging up is always told

    def watch() -> None:
        # A process that rank 0 has forked may hold its end of the socket, too.
        while not poller.poll(1000) and os.getppid() == parent_pid:
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def compute(config: RankConfig, connection: Connection) -> None:
    """Loads this rank's part, then follows rank 0; raises StartupError, LostError and others."""
    checkpoint = open_checkpoint(Path(config.model_path))
    # Torch takes seconds to import: an error in the files is told before.
    from fastgen_runtime.device.loading import Loader
    from fastgen_runtime.device.parallel import Group
    from fastgen_runtime.device.runner import Runner
    from fastgen_runtime.models.shard import Shard

    loader = Loader(checkpoint, config.runner, config.rank)
    shard = Shard(config.rank, config.runner.tensor_parallel_size)
    group = Group(shard, config.rendezvous, loader.device, config.answer_seconds)
    forward_over = loader.load(group.add_up)
    connection.send(Loaded(cores.resident_bytes()))
    begin = connection.receive()
    if not isinstance(begin, Begin):
        raise TypeError(f"rank 0 sent {type(begin).__name__} before the beginning")
    cache = loader.cache(begin.num_blocks)
    runner = Runner(forward_over(cache), loader.model_config, loader.kernels, cache)
    group.join()
    # As in the engine process: what is loaded stays.
    gc.collect()
    gc.freeze()
    log_event("rank ready", rank=config.rank, blocks=begin.num_blocks)
    no_rows = np.empty(0, np.int64)
    while isinstance(forward := connection.receive(), Forward):
        runner.compute(*forward.read(runner.block_size), no_rows)


def main() -> None:
    """Entry point of a rank's process."""
    config = msgspec.json.decode(sys.argv[1], type=RankConfig)
    connection = Connection(socket.socket(fileno=config.socket))
    end_with_leader(connection, config.parent_pid)
    start_logging(f"fastgen-runtime-rank-{config.rank}")
    # Ctrl-C reaches the whole process group; rank 0 says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        compute(config, connection)
    except EOFError:
        return
    except Exception as error:
        failure = _failure_of(error)
        if failure is None:
            log_problem("the rank ends", error, rank=config.rank)
            failure = Failed(StartupFailure.ENGINE_FAILED, f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            connection.send(failure)
        sys.exit(1)


def _failure_of(error: Exception) -> Failed | None:
    """What is said of errors that are expected; None for those that are not."""
    match error:
        case StartupError():
            return Failed(error.reason, str(error))
        case MemoryError():
            return Failed(StartupFailure.OUT_OF_MEMORY, "its part does not fit in memory")
        case LostError():
            return Failed(StartupFailure.ENGINE_FAILED, str(error), is_lost=True)
    return None


if __name__ == "__main__":
    main()
