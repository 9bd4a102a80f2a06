"""How cost grows with streams and with context, and how long a start takes, on this machine.

    python benchmarks/growth.py [streams] [context] [start] [--model smollm2|small] [--quick]
        [--out DIR]

streams: 1 to 64 answers at once after prompts of 128 tokens: time of a step, tokens per second.
context: prompts of 128 to 8,000 tokens alone: time to first token, and per token after it.
start: from `fastgen-runtime` to its first token over HTTP, several times; the files are in the
page cache after the first.

Prints one table each, and writes growth.json and a picture of each to DIR.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx2
from engine import Row, show
from engine_loop import EngineLoop
from engine_models import load_runner
from engine_plots import PLOTS

from fastgen_api.spec import BudgetMode
from fastgen_cli.bench.requests import Request
from fastgen_cli.plan import free_ports
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits

STREAMS: Final = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS: Final = (128, 256, 512, 1000, 2000, 4000, 8000)
STREAM_PROMPT: Final = 128
BLOCK_SIZE: Final = 32
MOST_LENGTH: Final = 8192
CONTEXT_BUDGET: Final = 512
"""SplitFuse's constant."""
START_SECONDS: Final = 300.0


def make_loop(runner: Runner, budget_tokens: int) -> EngineLoop:
    """An engine whose steps hold so many tokens."""
    limits = Limits(
        budget_tokens=budget_tokens,
        budget_mode=BudgetMode.FIXED,
        max_running=max(STREAMS),
        max_waiting=max(STREAMS),
        max_length=MOST_LENGTH,
        prefix_caching=False,
    )
    return EngineLoop(Engine(runner, limits))


def measure_streams(runner: Runner, rounds: int, tokens: int) -> list[Row]:
    """Steps that hold one token of each stream; the numbers of streams alternate."""
    # All prompts in one step: so all answers are under way at once from then on.
    loop = make_loop(runner, MOST_LENGTH)
    times: dict[int, list[float]] = {count: [] for count in STREAMS}
    loop.closed([Request(0, 0.0, STREAM_PROMPT, 4)], 1)
    for _ in range(rounds):
        for count in STREAMS:
            requests = [Request(i, 0.0, STREAM_PROMPT, tokens) for i in range(count)]
            loop.closed(requests, count)
            # Without the prompts' steps, and those at the end when fewer streams are left.
            times[count] += [b.step_seconds for b in loop.beats if b.num_step_tokens == count]
    return [
        {
            "streams": count,
            "step_ms": 1e3 * statistics.median(times[count]),
            "tokens_per_second": count / statistics.median(times[count]),
            "over_one_stream": statistics.median(times[count]) / statistics.median(times[1]),
        }
        for count in STREAMS
    ]


def measure_context(runner: Runner, rounds: int, tokens: int) -> list[Row]:
    """A prompt alone, then its answer; the lengths alternate."""
    loop = make_loop(runner, CONTEXT_BUDGET)
    ttfts: dict[int, list[float]] = {length: [] for length in CONTEXTS}
    tpots: dict[int, list[float]] = {length: [] for length in CONTEXTS}
    loop.closed([Request(0, 0.0, STREAM_PROMPT, 4)], 1)
    for number in range(rounds):
        for length in CONTEXTS:
            (record,) = loop.closed([Request(number, 0.0, length, tokens)], 1)
            ttfts[length].append(record.ttft_seconds or 0.0)
            tpots[length].append(record.tpot_seconds or 0.0)
    return [
        {
            "context": length,
            "ttft_ms": 1e3 * statistics.median(ttfts[length]),
            "prompt_tokens_per_second": length / statistics.median(ttfts[length]),
            "tpot_ms": 1e3 * statistics.median(tpots[length]),
        }
        for length in CONTEXTS
    ]


def start_seconds() -> tuple[float, float]:
    """Seconds from the program's start until it takes requests, and until its first token."""
    port, grpc_port = free_ports(2)
    words = ("-m", "fastgen_runtime.main", "--model=smollm2", "--host=127.0.0.1")
    ports = (f"--http-port={port}", f"--grpc-port={grpc_port}")
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 1}
    # -P: the scripts beside this one are no modules of the replica's.
    command = [sys.executable, "-P", *words, *ports]
    with tempfile.NamedTemporaryFile() as log:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                _wait_until_ready(client, process, begun, Path(log.name))
                ready = time.monotonic() - begun
                client.post("/v1/completions", json=body, timeout=60).raise_for_status()
                return ready, time.monotonic() - begun
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(
    client: httpx2.Client, process: "subprocess.Popen[bytes]", begun: float, log: Path
) -> None:
    while time.monotonic() < begun + START_SECONDS:
        if process.poll() is not None:
            said = log.read_text()[-2000:]
            raise RuntimeError(f"fastgen-runtime ended with {process.returncode}: {said}")
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.02)
    raise RuntimeError(f"fastgen-runtime takes no requests after {START_SECONDS:g} s")


def measure_start(rounds: int) -> list[Row]:
    """One row per start."""
    rows = []
    for number in range(rounds):
        ready, first = start_seconds()
        rows.append({"start": number + 1, "ready_seconds": ready, "first_token_seconds": first})
    return rows


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["streams", "context", "start"])
    parser.add_argument("--model", choices=("smollm2", "small"), default="smollm2")
    parser.add_argument("--quick", action="store_true", help="one round, for a first look")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rounds, tokens = (1, 8) if options.quick else (5, 32)

    def runner() -> Runner:
        blocks = max(MOST_LENGTH, max(STREAMS) * (STREAM_PROMPT + 64)) // BLOCK_SIZE + 8
        return load_runner(options.model, blocks, MOST_LENGTH, max(STREAMS))

    measures: dict[str, tuple[str, Callable[[], list[Row]]]] = {
        "streams": (
            f"Answers at once after prompts of {STREAM_PROMPT} tokens, {options.model}",
            lambda: measure_streams(runner(), rounds, tokens),
        ),
        "context": (
            f"One prompt and its answer, {options.model}",
            lambda: measure_context(runner(), rounds, tokens),
        ),
        "start": ("From nothing to the first token, smollm2", lambda: measure_start(rounds)),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "growth.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in options.parts:
        title, measured = measures[part]
        results[part] = measured()
        show(title, results[part])
        if part in PLOTS:
            PLOTS[part](results[part], options.out / f"growth-{part}.svg")
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
