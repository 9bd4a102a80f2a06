"""`fastgen simulate`: how many GPUs a trace takes, with what goodness, at what cost."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fastgen_balancer.scaling_policy import target_ratio
from fastgen_cli.errors import UserError
from fastgen_cli.outputs import check_file
from fastgen_cli.plotting import check_plot
from fastgen_cli.simulate.oracle import planned, smallest_fleet
from fastgen_cli.simulate.profile import find_profile
from fastgen_cli.simulate.reach import hindrance
from fastgen_cli.simulate.report import (
    SCHEMA,
    Report,
    TraceFacts,
    answer_of,
    latency_facts,
    run_of,
    table_of,
    write_json,
    write_plot,
)
from fastgen_cli.simulate.result import Result
from fastgen_cli.simulate.simulation import Setup, own_scaler, simulate
from fastgen_cli.simulate.slo import parse_slo
from fastgen_cli.simulate.trace import clipped, duration_of, read_trace

LEAST_SECONDS: Final = 60.0
BEGIN_UTILISATION: Final = 0.9
"""Of the replicas that are there from the begin, by what comes until another one could start."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked."""

    trace: Path
    slo: str
    model_latency: str
    min_replicas: int
    max_replicas: int
    initial_replicas: int | None
    cold_start_seconds: float | None
    gpus_per_replica: int
    gpu_hour_price: float | None
    output: Path | None
    plot: Path | None
    seed: int


def run(options: Options, console: Console, progress_console: Console) -> Report:
    """Simulates, prints the table, writes the files; raises UserError."""
    if options.plot:
        check_plot(options.plot)
    if options.output:
        check_file(options.output, "--output")
    setup, facts = _setup(options)
    own, fixed = _simulate(setup, progress_console)
    target = target_ratio(setup.slo) or 0.0
    tokens = facts.prompt_tokens + facts.output_tokens
    gpus, price = options.gpus_per_replica, options.gpu_hour_price
    runs = [run_of("autoscaled", own, target, gpus, price, tokens)]
    if fixed:
        count, result = fixed
        name = f"fixed, {count} replica{'s' if count > 1 else ''}"
        runs.append(run_of(name, result, target, gpus, price, tokens))
    report = Report(
        schema=SCHEMA,
        trace=facts,
        slo=setup.slo,
        model_latency=latency_facts(setup.profile),
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        gpus_per_replica=gpus,
        gpu_hour_price=price,
        seed=options.seed,
        smallest_fixed_fleet=fixed[0] if fixed else None,
        runs=runs,
    )
    if facts.shortened:
        console.print(f"{facts.shortened} requests were longer than the model and are shortened.")
    console.print(table_of(report))
    why = None if fixed else hindrance(setup.trace, setup.profile, setup.slo)
    console.print(answer_of(report, why), highlight=False)
    if options.output:
        write_json(report, options.output)
    if options.plot:
        write_plot(report, [arrival.at for arrival in setup.trace], options.plot)
    return report


def _setup(options: Options) -> tuple[Setup, TraceFacts]:
    if options.max_replicas < options.min_replicas:
        raise UserError("--max-replicas must be at least --min-replicas")
    slo = parse_slo(options.slo)
    profile = find_profile(options.model_latency)
    if options.cold_start_seconds is not None:
        profile = replace(profile, cold_start_seconds=options.cold_start_seconds)
    trace, shortened = clipped(read_trace(options.trace), profile.max_length)
    seconds = max(LEAST_SECONDS, duration_of(trace))
    setup = Setup(
        trace,
        seconds,
        profile,
        slo,
        max_replicas=options.max_replicas,
        min_replicas=options.min_replicas,
        seed=options.seed,
    )
    initial = options.initial_replicas or planned(setup, BEGIN_UTILISATION)[0]
    initial = max(options.min_replicas, min(options.max_replicas, initial))
    facts = TraceFacts(
        file=options.trace.name,
        requests=len(trace),
        seconds=seconds,
        prompt_tokens=sum(arrival.prompt_tokens for arrival in trace),
        output_tokens=sum(arrival.output_tokens for arrival in trace),
        shortened=shortened,
    )
    return replace(setup, initial_replicas=initial), facts


def _simulate(setup: Setup, console: Console) -> tuple[Result, tuple[int, Result] | None]:
    """The autoscaled run, and the smallest fixed fleet that meets the SLO."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("autoscaled", total=1.0)

        def tell(share: float) -> None:
            progress.update(task, completed=share)

        def begin(replicas: int) -> None:
            progress.reset(task, description=f"fixed, {replicas} replicas", total=1.0)

        own = simulate(setup, own_scaler(setup), tell)
        return own, smallest_fleet(setup, begin, tell)
