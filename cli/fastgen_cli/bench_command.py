"""The command `fastgen bench`, as a person types it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fastgen_cli.bench.api import Api
from fastgen_cli.errors import UserError
from fastgen_cli.url import DEFAULT

STOPPED = 130
"""Exit code after Ctrl-C."""

Url = Annotated[
    str,
    typer.Argument(
        envvar="FASTGEN_URL",
        metavar="[URL]",
        help="Any OpenAI endpoint; `/v1` may be left out.",
    ),
]
Grpc = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A FastGen endpoint over gRPC, in place of URL."),
]
Tls = Annotated[bool, typer.Option("--tls", help="gRPC over TLS.")]
CaFile = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Who signs the endpoint's certificate, PEM."),
]
WhichApi = Annotated[
    Api, typer.Option(case_sensitive=False, help="Which of an OpenAI endpoint's two is asked.")
]
Model = Annotated[str | None, typer.Option(help="Default: the first that the endpoint serves.")]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="A key a line; requests take turns. Default: OPENAI_API_KEY, if it is set.",
    ),
]
Clients = Annotated[
    str | None,
    typer.Option(
        help="Closed loop: so many clients, one load after the other; default 1,2,4,8,16,32.",
        show_default=False,
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(help="Open loop: requests/s, Poisson, such as 0.5,1,2.", show_default=False),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="CSV as of fastgen simulate: gives times and lengths where no other flag does.",
    ),
]
Speed = Annotated[str, typer.Option(help="The trace's times, so many times as fast.")]
LENGTHS = "512, uniform:100-900, normal:512,0.3 (mean, spread over mean) or trace"
PromptTokens = Annotated[
    str | None, typer.Option(help=f"{LENGTHS}; default normal:512,0.3.", show_default=False)
]
OutputTokens = Annotated[
    str | None, typer.Option(help=f"{LENGTHS}; default normal:64,0.3.", show_default=False)
]
MaxLength = Annotated[
    int | None, typer.Option(min=2, help="Most tokens of prompt and answer; longer ones are cut.")
]
Requests = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most requests of a load; default 4 × clients + 32, without a limit in open loops.",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Requests are sent for so long, then answers are waited for; default 60 with --rate.",
    ),
]
WarmUp = Annotated[int, typer.Option(min=0, help="Requests beforehand that do not count.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Most seconds of a request.")]
MaxInFlight = Annotated[
    int, typer.Option(min=1, help="Of open loops: beyond it a request fails and is not sent.")
]
Slo = Annotated[
    str | None,
    typer.Option(
        help="For goodput, for example ttft=500ms+2000us,tpot=50ms,gap=250ms,percent=99 (after "
        "the +: per prompt token), or a JSON file in the form of `spec.slo`."
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option(help="Answers get as long as asked (FastGen, vLLM, SGLang).")
]
Temperature = Annotated[
    float | None, typer.Option(min=0, max=2, help="Default: the endpoint's own.")
]
TokenIds = Annotated[
    str | None,
    typer.Option(
        metavar="LEAST-MOST",
        help="Send prompts as token ids of this range; gRPC does so with 1000-4000.",
    ),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        exists=True,
        help="tokenizer.json that counts tokens; default: the endpoint's own counts.",
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed sends the same.")]
Output = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write a JSON file, its fields are in docs/benchmarking.md."),
]
Plot = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write a picture: .png, .svg or .pdf.")
]
Html = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write a page with table, picture and JSON.")
]


def bench(
    url: Url = DEFAULT,
    grpc: Grpc = None,
    tls: Tls = False,
    ca_file: CaFile = None,
    api: WhichApi = Api.CHAT,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    clients: Clients = None,
    rate: Rate = None,
    trace: Trace = None,
    speed: Speed = "1",
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    max_length: MaxLength = None,
    requests: Requests = None,
    seconds: Seconds = None,
    warm_up: WarmUp = 1,
    timeout: Timeout = 600.0,
    max_in_flight: MaxInFlight = 1000,
    slo: Slo = None,
    ignore_eos: IgnoreEos = True,
    temperature: Temperature = None,
    token_ids: TokenIds = None,
    tokenizer: TokenizerFile = None,
    seed: Seed = 0,
    output: Output = None,
    plot: Plot = None,
    html: Html = None,
) -> None:
    """Load an endpoint and say how fast it answers: latencies, throughput, goodput under an SLO.

    Ctrl-C ends the load and shows what was measured so far.
    """
    given = locals()  # every parameter is an option of the same name
    try:
        is_complete = _run(given)
    except UserError as error:
        Console(stderr=True).print(
            str(error), style="red", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    if not is_complete:
        raise typer.Exit(STOPPED)


def _run(given: dict[str, Any]) -> bool:
    # Half a second of imports that the other commands do without.
    from fastgen_cli.bench import command

    return command.run(command.Options(**given), Console(), Console(stderr=True))


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(bench)
