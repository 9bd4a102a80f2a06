"""What busy neighbours and a CPU quota cost the whole-step op, beside torch kernel by kernel.

    python benchmarks/neighbours.py [--rounds N] [--out DIR]

Times on the wall of two of SmolLM2's steps: alone; beside one busy process and beside one per core;
and where a control group grants one core, with a thread per core and with as many threads as a
replica would choose. Each over the same way's time alone. `fair` is that ratio where the kernel's
scheduler shares the cores out evenly among busy threads and nothing is lost by it.

Prints a table and writes neighbours.json to DIR. The quota needs the right to make a control group.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Final

import typer
from engine import Row, show

from fastgen_runtime.engine import cores

CORES: Final = cores.available_threads()
cores.limit_threads(CORES)  # before torch is imported
from cpu_step import BLOCK_SIZE, chunks_of  # noqa: E402

from fastgen_runtime.device.runner import Runner, RunnerConfig  # noqa: E402
from fastgen_runtime.engine.runner_config import CpuStepUse  # noqa: E402
from fastgen_runtime.engine.step import Chunk  # noqa: E402
from fastgen_runtime.models.checkpoint import open_checkpoint  # noqa: E402
from fastgen_runtime.sources.fetch import SMOLLM2, fetch  # noqa: E402

STEPS: Final = {
    "16 decodes at 193": [(192, 1)] * 16,
    "15 decodes, chunk of 113": [(192, 1)] * 15 + [(0, 113)],
}
"""Start and length of each chunk."""
PERIOD_MICROSECONDS: Final = 100_000
GROUP: Final = "fastgen-neighbours"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Beside so many processes that compute without end."""
    with ExitStack() as ended:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            ended.callback(process.wait)
            ended.callback(process.kill)
        yield


@contextmanager
def one_core() -> Iterator[None]:
    """All threads of this process share one core's time; raises OSError where that is forbidden."""
    root = Path("/sys/fs/cgroup")
    old = root / "cpu"
    base = old if (old / "cpu.cfs_quota_us").exists() else root
    group, groups = base / GROUP, cores.parse_own_groups(Path("/proc/self/cgroup").read_text())
    own = base / groups["cpu" if base == old else ""].lstrip("/")
    group.mkdir()
    try:
        if base == old:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_MICROSECONDS))
        else:
            (group / "cpu.max").write_text(f"{PERIOD_MICROSECONDS} {PERIOD_MICROSECONDS}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextmanager
def alone() -> Iterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Situation:
    """threads: of the ways that are timed. fair: see the module's words."""

    name: str
    threads: int
    fair: float
    enter: Callable[[], AbstractContextManager[None]]


SITUATIONS: Final = (
    Situation("alone", CORES, 1.0, alone),
    Situation("1 busy process", CORES, (CORES + 1) / CORES, lambda: busy(1)),
    Situation(f"{CORES} busy processes", CORES, 2.0, lambda: busy(CORES)),
    Situation("a quota of 1 core", CORES, float(CORES), one_core),
    Situation("the same, as a replica chooses", 1, float(CORES), one_core),
)


def load(use: CpuStepUse, threads: int) -> Runner:
    config = RunnerConfig(
        block_size=BLOCK_SIZE, num_blocks=128, max_model_length=512, threads=threads, cpu_step=use
    )
    runner = Runner.load(open_checkpoint(fetch(SMOLLM2)), config)
    runner.cache.zero_()
    return runner


def times(runner: Runner, chunks: list[Chunk], rounds: int) -> list[float]:
    """Milliseconds on the wall; the first is not counted."""
    taken = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        runner.logits(chunks, list(range(len(chunks))))
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken[1:]


def measure(rounds: int) -> list[Row]:
    """One row per step, situation and way."""
    runners = {
        (name, threads): load(use, threads)
        for name, use in (("op", CpuStepUse.AUTO), ("torch", CpuStepUse.OFF))
        for threads in sorted({situation.threads for situation in SITUATIONS})
    }
    rows: list[Row] = []
    for step, pieces in STEPS.items():
        chunks = chunks_of(pieces)
        base: dict[str, float] = {}
        for situation in SITUATIONS:
            for name in ("op", "torch"):
                try:
                    with situation.enter():
                        taken = times(runners[name, situation.threads], chunks, rounds)
                except OSError as error:
                    print(f"{situation.name}: not measured, {error}", file=sys.stderr)
                    continue
                middle = median(taken)
                over = middle / base.setdefault(name, middle)
                rows.append(
                    {
                        "step": step,
                        "beside": situation.name,
                        "way": name,
                        "median_ms": middle,
                        "p90_ms": quantiles(taken, n=10)[-1],
                        "over_alone": over,
                        "fair": situation.fair,
                    }
                )
    for runner in runners.values():
        runner.close()
    return rows


def main(
    rounds: Annotated[int, typer.Option(help="of each step in each situation")] = 60,
    out: Annotated[Path, typer.Option(help="folder for the figures")] = Path("benchmarks/results"),
) -> None:
    rows = measure(rounds)
    show(f"SmolLM2's steps on {CORES} cores, beside others", rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "neighbours.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
