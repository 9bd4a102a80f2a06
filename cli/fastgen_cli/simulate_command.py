"""The command `fastgen simulate`, as a person types it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fastgen_cli.errors import UserError, needs

TraceFile = Annotated[
    Path,
    typer.Option(
        "--trace",
        exists=True,
        dir_okay=False,
        help="CSV with the columns timestamp, prompt_tokens and output_tokens, or those of the "
        "Azure LLM traces.",
    ),
]
Slo = Annotated[
    str,
    typer.Option(
        help="For example ttft=500ms+2000us,tpot=50ms,gap=250ms,percent=99 (after the +: per "
        "prompt token), or a JSON file in the form of `spec.slo`."
    ),
]
ModelLatency = Annotated[
    str, typer.Option(help="llama-8b-l4, smollm2-cpu, or a JSON file: see docs/simulate.md.")
]
MinReplicas = Annotated[int, typer.Option(min=1, max=1000, help="As in `spec.scaling`.")]
MaxReplicas = Annotated[int, typer.Option(min=1, max=1000, help="As in `spec.scaling`.")]
InitialReplicas = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Ready at the begin; default: what comes within a cold start.",
        show_default=False,
    ),
]
ColdStart = Annotated[
    float | None,
    typer.Option(
        min=0, help="From a replica's GPU to its first request; default: the model latency's."
    ),
]
GpusPerReplica = Annotated[int, typer.Option(min=1, help="Tensor-parallel size.")]
Price = Annotated[float | None, typer.Option(min=0, help="Of a GPU and hour, in any currency.")]
Output = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write a JSON file, its fields are in docs/simulate.md."),
]
Plot = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write a picture: .png, .svg or .pdf.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def simulate(
    trace: TraceFile,
    slo: Slo,
    model_latency: ModelLatency = "llama-8b-l4",
    min_replicas: MinReplicas = 1,
    max_replicas: MaxReplicas = 16,
    initial_replicas: InitialReplicas = None,
    cold_start_seconds: ColdStart = None,
    gpus_per_replica: GpusPerReplica = 1,
    gpu_hour_price: Price = None,
    output: Output = None,
    plot: Plot = None,
    seed: Seed = 0,
) -> None:
    """Say how many GPUs a trace takes, how many requests are good, and what that costs.

    Runs the scheduler, the picker and the autoscaler themselves over the trace, in simulated time.
    """
    try:
        _run(
            trace=trace,
            slo=slo,
            model_latency=model_latency,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            initial_replicas=initial_replicas,
            cold_start_seconds=cold_start_seconds,
            gpus_per_replica=gpus_per_replica,
            gpu_hour_price=gpu_hour_price,
            output=output,
            plot=plot,
            seed=seed,
        )
    except UserError as error:
        Console(stderr=True).print(
            str(error), style="red", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(1) from error


def _run(**given: object) -> None:
    try:
        # The engine and the balancer, which the other commands do without.
        from fastgen_cli.simulate import command
    except ModuleNotFoundError as error:
        raise UserError(needs("fastgen simulate", str(error.name))) from error
    options = command.Options(**given)  # type: ignore[arg-type]
    command.run(options, Console(), Console(stderr=True))


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(simulate)
