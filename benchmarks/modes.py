"""One engine in four modes, as continuous batching grew up, measured by `fastgen bench`.

    python benchmarks/modes.py [--model smollm2|small] [--clients 1,2,4,8,16] [--rate R,...]
        [--prompt-tokens L] [--output-tokens L] [--slo SLO] [--rounds N] [--seed N] [--out DIR]

whole prompts: a prompt joins the running answers in one step, however long it is (Orca).
prefill first: steps of whole prompts alone, while the answers stand still (vLLM before chunks).
Fixed: Dynamic SplitFuse, pieces of prompts fill each step to 512 tokens.
Auto: SplitFuse with the largest step that keeps the SLO's pace.

The same runner, blocks, requests and seed in each; loads and modes alternate, so that noise hits
all. Prints TTFT P90, TPOT P99, goodput and effective throughput, and writes modes.json and
modes.svg to DIR.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
from engine_loop import EngineLoop
from engine_models import load_runner
from engine_modes import MODES, MOST_TOKENS, Mode, make_engine
from rich.console import Console
from rich.table import Table

from fastgen_api.spec import SLO
from fastgen_cli.bench.loads import ClosedLoad, Limits, Load, make_loads, make_shape, requests_of
from fastgen_cli.bench.measures import Distribution, Point, measure
from fastgen_cli.bench.plots import draw
from fastgen_cli.bench.record import Record
from fastgen_cli.bench.requests import Shape
from fastgen_cli.plotting import load_matplotlib, save_plot
from fastgen_cli.simulate.slo import parse_slo
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.front.slo_file import pace_of

MOST_REQUESTS: Final = 64
BLOCK_SIZE: Final = 32
WARM_UP: Final = 8
"""Requests before each mode's first load: its latency model learns by them."""
WARM_UP_PLACE: Final = 999
COLUMNS: Final = (
    *("load", "mode", "requests/s", "TTFT P90, ms", "TPOT P99, ms", "longest gap P99, ms"),
    *("good, %", "goodput, 1/s", "effective at 4 tokens/s, 1/s"),
)


def make_loop(mode: Mode, runner: Runner, slo: SLO) -> EngineLoop:
    """A fresh engine in this mode, with the SLO's pace, on a model that all modes share."""
    engine = make_engine(mode, runner, MOST_REQUESTS)
    engine.set_pace(pace_of(slo))
    return EngineLoop(engine)


def run(loop: EngineLoop, load: Load, place: int, shape: Shape, seed: int) -> list[Record]:
    """The records of one load."""
    requests = requests_of(load, place, shape, seed)
    return (
        loop.closed(requests, load.clients) if isinstance(load, ClosedLoad) else loop.open(requests)
    )


def measure_modes(
    runner: Runner, loads: Sequence[Load], shape: Shape, slo: SLO, rounds: int, seed: int
) -> dict[str, list[Point]]:
    """The points of each mode, one per load: of all rounds' records, each round's own seconds."""
    loops = {mode.name: make_loop(mode, runner, slo) for mode in MODES}
    for loop in loops.values():
        run(loop, ClosedLoad(4, Limits(requests=WARM_UP)), WARM_UP_PLACE, shape, seed)
    found: dict[tuple[str, int], list[Record]] = {}
    for number in range(rounds):
        for place, load in enumerate(loads):
            for name, loop in loops.items():
                records = run(loop, load, place, shape, seed + number)
                found.setdefault((name, place), []).extend(
                    shifted(records, found.get((name, place)))
                )
    return {
        name: [
            measure(load.name, found[name, place], slo,
                    clients=load.clients if isinstance(load, ClosedLoad) else None,
                    rate=None if isinstance(load, ClosedLoad) else load.rate)
            for place, load in enumerate(loads)
        ]
        for name in loops
    }  # fmt: skip


def shifted(records: list[Record], before: Collection[Record] | None) -> list[Record]:
    """The records as if their round had followed the earlier ones without a pause."""
    if not before:
        return records
    later = max(record.ended_seconds for record in before)
    return [
        replace(
            record,
            sent_seconds=record.sent_seconds + later,
            ended_seconds=record.ended_seconds + later,
            token_seconds=tuple(at + later for at in record.token_seconds),
        )
        for record in records
    ]


def table_of(points: dict[str, list[Point]]) -> Table:
    """A row per load and mode."""
    table = Table(title="One engine in four modes", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for place in range(len(next(iter(points.values())))):
        for name, curve in points.items():
            point = curve[place]
            table.add_row(
                point.name, name, f"{point.requests_per_second:.3g}",
                _ms(point.ttft_seconds, 90), _ms(point.tpot_seconds, 99),
                _ms(point.gap_seconds, 99),
                "–" if point.good_percent is None else f"{point.good_percent:.1f}",
                f"{point.goodput or 0:.3g}", f"{point.effective_throughput['4']:.3g}",
            )  # fmt: skip
    return table


def _ms(values: Distribution | None, percent: int) -> str:
    return "–" if values is None else f"{1e3 * getattr(values, f'p{percent}'):.0f}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", choices=("smollm2", "small"), default="smollm2")
    parser.add_argument("--clients")
    parser.add_argument("--rate")
    parser.add_argument("--prompt-tokens", default="normal:1000,0.3")
    parser.add_argument("--output-tokens", default="normal:60,0.3")
    parser.add_argument("--slo", default="ttft=500ms+2000us,tpot=150ms,gap=500ms,percent=95")
    parser.add_argument("--requests", type=int, help="of each load; default 4 × clients + 32")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    load_matplotlib("modes.py")
    clients = None if options.rate else options.clients or "1,2,4,8,16"
    loads = make_loads(clients, options.rate, (), "1", Limits(requests=options.requests))
    shape = make_shape(options.prompt_tokens, options.output_tokens, (), MOST_TOKENS)
    # Blocks for as many of the longest requests as there usually are; admission waits for the rest.
    runner = load_runner(
        options.model, MOST_REQUESTS * 2048 // BLOCK_SIZE, MOST_TOKENS, MOST_REQUESTS
    )
    points = measure_modes(
        runner, loads, shape, parse_slo(options.slo), options.rounds, options.seed
    )
    Console(width=160).print(table_of(points))
    options.out.mkdir(parents=True, exist_ok=True)
    told = {"options": {k: str(v) for k, v in vars(options).items()}, "modes": points}
    (options.out / "modes.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"
    )
    save_plot(draw(list(points.items())), options.out / "modes.svg")


if __name__ == "__main__":
    main()
