"""What a person may give to `fastgen serve` and `fastgen chat`."""

from pathlib import Path
from typing import Annotated

import typer

from fastgen_api.spec import BudgetMode, DType, Quantization

Model = Annotated[
    str,
    typer.Argument(
        help="A GGUF file, a Hugging Face folder, hf://owner/name, https://host/path.gguf, or "
        "`smollm2` (fetched once)."
    ),
]
Replicas = Annotated[
    int, typer.Option(min=1, max=64, help="More than one share a port through the balancer.")
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the OpenAI API.")]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="gRPC port of one replica (default 9000); several use --port."
    ),
]
ServedName = Annotated[
    str | None, typer.Option(help="Name that clients give as `model`; default: MODEL's name.")
]
ComputeType = Annotated[
    DType, typer.Option(case_sensitive=False, help="Type of weights and computation.")
]
WeightForm = Annotated[
    Quantization,
    typer.Option(case_sensitive=False, help="How the weights of layers are held; FP8: on GPUs."),
]
MaxModelLength = Annotated[
    int | None, typer.Option(min=1, help="Longest prompt and answer together, tokens.")
]
MaxConcurrentRequests = Annotated[
    int | None, typer.Option(min=1, help="Requests that a replica runs at once.")
]
TokenBudget = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of one step of a replica.")
]
TokenBudgetMode = Annotated[
    BudgetMode | None,
    typer.Option(
        case_sensitive=False,
        help="Auto: steps as large as the SLO's time per token allows. Fixed: always the most.",
    ),
]
PrefixCaching = Annotated[
    bool, typer.Option(help="Compute prompts that begin alike once, while their blocks are kept.")
]
SloFile = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="JSON in the form of `spec.slo`."),
]
DrainSeconds = Annotated[int, typer.Option(min=0, help="Time that running answers get on Ctrl-C.")]

Url = Annotated[
    str, typer.Option(envvar="FASTGEN_URL", help="Any OpenAI endpoint; `/v1` may be left out.")
]
ChatModel = Annotated[str | None, typer.Option(help="Default: the first that the endpoint serves.")]
MessageText = Annotated[
    str | None, typer.Option("--message", "-m", help="Ask this, print the answer and end.")
]
SystemMessage = Annotated[str | None, typer.Option(help="System message.")]
Temperature = Annotated[
    float,
    typer.Option(min=0, max=2, help="0: the likeliest token each time; small models ramble at 1."),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer.")]
