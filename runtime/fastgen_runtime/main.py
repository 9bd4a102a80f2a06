"""`fastgen-runtime`: a replica's command line."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from fastgen_api import names
from fastgen_api.spec import BudgetMode, DType, Quantization, Speculation
from fastgen_runtime.config import Config, MetricAliases
from fastgen_runtime.engine.runner_config import CpuStepUse
from fastgen_runtime.log import log_problem, start_logging
from fastgen_runtime.startup_error import StartupError
from fastgen_runtime.termination import leave_message

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Source = Annotated[str, typer.Option(help="file:///path, hf://owner/name, https://…, or a path.")]
ServedName = Annotated[
    str | None, typer.Option(help="The model's name to clients; default: the file's.")
]
ComputeType = Annotated[DType, typer.Option(help="What to compute with.")]
WeightForm = Annotated[Quantization, typer.Option(help="How the weights of layers are held.")]
MaxModelLength = Annotated[
    int | None, typer.Option(help="Most tokens of a request; default: the model's own.")
]
MaxConcurrentRequests = Annotated[int, typer.Option(help="Most requests in a step.")]
KvBlockSize = Annotated[int, typer.Option(help="Tokens of a KV block.")]
TokenBudgetMode = Annotated[
    BudgetMode,
    typer.Option(help="Auto: smaller steps where streams would miss the SLO; Fixed: never."),
]
TokenBudget = Annotated[
    int | None, typer.Option(help="Most tokens of a step; default: 2048 for Auto, else 512.")
]
PrefixCaching = Annotated[
    bool, typer.Option(help="Keep the blocks of prompts for others that begin alike.")
]
SpeculationKind = Annotated[
    Speculation,
    typer.Option(
        help="PromptLookup: guess tokens where an answer repeats its text, if that is faster."
    ),
]
MemoryPercent = Annotated[int, typer.Option(help="Share of the memory to use.")]
TensorParallelSize = Annotated[
    int, typer.Option(help="Processes that each hold a part of every layer.")
]
CpuStep = Annotated[
    CpuStepUse,
    typer.Option(
        help="Auto: CPUs compute a step as one compiled op where they can; Off: never.",
        envvar="FASTGEN_CPU_STEP",
    ),
]
SloFile = Annotated[Path | None, typer.Option(help="The SLO as JSON; read again when it changes.")]
DrainSeconds = Annotated[
    float, typer.Option(help="How long running streams may take after SIGTERM.")
]
ServingPort = Annotated[int, typer.Option(help="0: a free one.")]
MetricsPort = Annotated[
    int | None, typer.Option(help="Serves /metrics alone; default: only the HTTP port does.")
]
Aliases = Annotated[
    MetricAliases | None,
    typer.Option(
        help="Tell the load under another engine's names, too.",
        envvar="FASTGEN_METRIC_ALIASES",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Deployment = Annotated[str, typer.Option(help="FastGenDeployment, for metrics.")]
Namespace = Annotated[str, typer.Option(help="Its namespace, for metrics.")]


@app.command()
def serve(
    model: Source,
    served_name: ServedName = None,
    dtype: ComputeType = DType.AUTO,
    quantization: WeightForm = Quantization.AUTO,
    max_model_length: MaxModelLength = None,
    max_concurrent_requests: MaxConcurrentRequests = 256,
    kv_block_size: KvBlockSize = 64,
    token_budget_mode: TokenBudgetMode = BudgetMode.AUTO,
    token_budget: TokenBudget = None,
    prefix_caching: PrefixCaching = True,
    speculation: SpeculationKind = Speculation.NONE,
    memory_percent: MemoryPercent = 90,
    tensor_parallel_size: TensorParallelSize = 1,
    cpu_step: CpuStep = CpuStepUse.AUTO,
    slo_file: SloFile = None,
    drain_seconds: DrainSeconds = 120,
    http_port: ServingPort = names.Port.REPLICA_HTTP,
    grpc_port: ServingPort = names.Port.REPLICA_GRPC,
    metrics_port: MetricsPort = None,
    metric_aliases: Aliases = None,
    host: Host = "0.0.0.0",
    deployment: Deployment = "",
    namespace: Namespace = "",
) -> None:
    """Serve a model over OpenAI's HTTP API and gRPC."""
    config = Config(
        model=model,
        served_name=served_name,
        dtype=dtype,
        quantization=quantization,
        max_model_length=max_model_length,
        max_concurrent_requests=max_concurrent_requests,
        kv_block_size=kv_block_size,
        token_budget_mode=token_budget_mode,
        token_budget=token_budget,
        prefix_caching=prefix_caching,
        speculation=speculation,
        memory_percent=memory_percent,
        tensor_parallel_size=tensor_parallel_size,
        cpu_step=cpu_step,
        slo_file=slo_file,
        drain_seconds=drain_seconds,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        metric_aliases=metric_aliases,
        host=host,
        deployment=deployment,
        namespace=namespace,
    )
    _run(config)


def _run(config: Config) -> None:
    """Serves until told to stop, then exits."""
    start_logging("fastgen-runtime")
    # gRPC's own lines are no JSON, and tell nothing that ours do not; it reads this when imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from fastgen_runtime.replica import run_replica

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sys.exit(runner.run(run_replica(config)))
    except StartupError as error:
        log_problem("cannot start", reason=str(error.reason), sentence=str(error))
        leave_message(error.reason, str(error))
        sys.exit(1)


if __name__ == "__main__":
    app()
