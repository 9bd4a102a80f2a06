"""What the scheduler's design rests on, measured on this machine.

    python benchmarks/engine.py [steps] [chunks] [pace] [--quick] [--out DIR]

steps: time of a step against its tokens, the same tokens in few and in many requests.
chunks: a prompt in equal chunks against chunks that fill the budget.
pace: step times, time per output token and time to first token while prompts of 8,000 tokens
arrive among chats, by kind of budget and target.

Prints one table each, and writes engine.json and a picture of each to DIR.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engine_models import load_runner
from engine_pace import measure_pace
from engine_plots import PLOTS
from rich.console import Console
from rich.table import Table

from fastgen_runtime.device.runner import Runner
from fastgen_runtime.engine.step import Chunk, Sampling, Step

Row = dict[str, Any]

CONTEXT = 256
"""Tokens before each chunk of `steps`: a chat under way."""
GREEDY = Sampling(temperature=0.0)


def step_of(sizes: list[int], start: int, block_size: int, samples: bool = True) -> Step:
    """A step of one chunk per size, each with blocks of its own."""
    chunks, next_block = [], 0
    rng = np.random.default_rng(len(sizes))
    for number, size in enumerate(sizes):
        blocks = -(-(start + size) // block_size)
        chunks.append(
            Chunk(
                request_id=str(number),
                token_ids=rng.integers(4, 4000, size).tolist(),
                start=start,
                block_ids=tuple(range(next_block, next_block + blocks)),
                sampling=GREEDY if samples else None,
            )
        )
        next_block += blocks
    return Step(tuple(chunks))


def seconds_of(runner: Runner, step: Step) -> float:
    """Time of one forward pass."""
    begun = time.perf_counter()
    runner.run(step)
    return time.perf_counter() - begun


def measure_steps(runner: Runner, rounds: int) -> list[Row]:
    """Median step time by tokens and requests; the shapes alternate, so that noise hits all."""
    shapes = [
        (tokens, requests)
        for tokens in (8, 16, 32, 64, 128, 256, 512)
        for requests in (1, 4, 16, 64)
        if requests <= tokens
    ]
    steps = {
        shape: step_of([shape[0] // shape[1]] * shape[1], CONTEXT, runner.block_size)
        for shape in shapes
    }
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for step in steps.values():
        seconds_of(runner, step)
    for _ in range(rounds):
        for shape, step in steps.items():
            times[shape].append(seconds_of(runner, step))
    return [
        {
            "tokens": tokens,
            "requests": requests,
            "milliseconds": 1e3 * statistics.median(times[tokens, requests]),
            "tokens_per_second": tokens / statistics.median(times[tokens, requests]),
        }
        for tokens, requests in shapes
    ]


def chunked(prompt: int, budget: int, is_equal: bool) -> list[int]:
    """Sizes of a prompt's chunks."""
    count = -(-prompt // budget)
    if is_equal:
        return [prompt // count + (number < prompt % count) for number in range(count)]
    return [min(budget, prompt - number * budget) for number in range(count)]


def measure_chunks(runner: Runner, rounds: int, budget: int = 256) -> list[Row]:
    """A prompt alone, in equal chunks and in chunks that fill the budget."""
    rows = []
    for prompt in (budget * 5 // 4, budget * 3 // 2, budget * 9 // 4, budget * 4):
        totals: dict[bool, list[float]] = {True: [], False: []}
        longest: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for is_equal in (True, False):
                times, start = [], 0
                for size in chunked(prompt, budget, is_equal):
                    times.append(seconds_of(runner, step_of([size], start, runner.block_size)))
                    start += size
                totals[is_equal].append(sum(times))
                longest[is_equal].append(max(times))
        equal, greedy = statistics.median(totals[True]), statistics.median(totals[False])
        rows.append(
            {
                "prompt": prompt,
                "budget": budget,
                "equal_chunks": chunked(prompt, budget, True),
                "greedy_chunks": chunked(prompt, budget, False),
                "equal_milliseconds": 1e3 * equal,
                "greedy_milliseconds": 1e3 * greedy,
                "equal_over_greedy": equal / greedy,
                "longest_equal_over_greedy": statistics.median(longest[True])
                / statistics.median(longest[False]),
            }
        )
    return rows


def show(title: str, rows: list[Row]) -> None:
    """A table with the rows' keys as columns."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell)
                        for cell in row.values()))  # fmt: skip
    Console(width=160).print(table)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["steps", "chunks", "pace"])
    parser.add_argument("--quick", action="store_true", help="a few rounds, for a first look")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rounds, seconds = (3, 15.0) if options.quick else (7, 36.0)
    measures: dict[str, tuple[str, Callable[[], list[Row]]]] = {
        "steps": (
            f"Step time, SmolLM2, {CONTEXT} tokens of context before each chunk",
            lambda: measure_steps(load_runner("smollm2", 64 * 12, 512, 64), rounds),
        ),
        "chunks": (
            "One prompt in equal chunks against chunks that fill the budget, SmolLM2",
            lambda: measure_chunks(load_runner("smollm2", 64, 512, 8), rounds),
        ),
        "pace": (
            "Chats of 20 tokens while prompts of 8,000 arrive",
            lambda: measure_pace(lambda: load_runner("small", 1280, 8192, 64), seconds),
        ),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "engine.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for part in options.parts:
        title, measure = measures[part]
        results[part] = measure()
        show(title, results[part])
        PLOTS[part](results[part], options.out / f"engine-{part}.svg")
    file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
