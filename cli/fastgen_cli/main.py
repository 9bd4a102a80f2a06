"""The command `fastgen`."""

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from fastgen_api.spec import DType, Quantization
from fastgen_cli import arguments, bench_command, cluster_commands, simulate_command
from fastgen_cli import serve as serving
from fastgen_cli.errors import UserError, needs
from fastgen_cli.plan import Options
from fastgen_cli.source import find_source
from fastgen_cli.url import DEFAULT

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve language models that keep a latency SLO, and talk to them.",
    epilog="Start with: fastgen serve smollm2   and, in another terminal: fastgen chat",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastgen {version('fastgen')}")
        raise typer.Exit


@app.callback()
def fastgen(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve language models that keep a latency SLO, and talk to them."""


def _fail(error: UserError) -> typer.Exit:
    Console(stderr=True).print(
        str(error), style="red", highlight=False, markup=False, soft_wrap=True
    )
    return typer.Exit(1)


@app.command()
def serve(
    model: arguments.Model,
    replicas: arguments.Replicas = 1,
    host: arguments.Host = "127.0.0.1",
    port: arguments.Port = 8000,
    grpc_port: arguments.GrpcPort = None,
    served_name: arguments.ServedName = None,
    dtype: arguments.ComputeType = DType.AUTO,
    quantization: arguments.WeightForm = Quantization.AUTO,
    max_model_length: arguments.MaxModelLength = None,
    max_concurrent_requests: arguments.MaxConcurrentRequests = None,
    token_budget: arguments.TokenBudget = None,
    token_budget_mode: arguments.TokenBudgetMode = None,
    prefix_caching: arguments.PrefixCaching = True,
    slo_file: arguments.SloFile = None,
    drain_seconds: arguments.DrainSeconds = 30,
) -> None:
    """Serve MODEL over HTTP (OpenAI API) and gRPC until Ctrl-C."""
    if replicas > 1 and grpc_port is not None:
        raise typer.BadParameter(
            "several replicas serve HTTP and gRPC on --port", param_hint="--grpc-port"
        )
    engine = {
        "--dtype": None if dtype is DType.AUTO else dtype.value,
        "--quantization": None if quantization is Quantization.AUTO else quantization.value,
        "--max-model-length": max_model_length,
        "--max-concurrent-requests": max_concurrent_requests,
        "--token-budget": token_budget,
        "--token-budget-mode": token_budget_mode,
        "--slo-file": slo_file,
    }
    try:
        options = Options(
            source=find_source(model, served_name),
            replicas=replicas,
            host=host,
            port=port,
            grpc_port=grpc_port or 9000,
            engine=(*_words(engine), *(() if prefix_caching else ("--no-prefix-caching",))),
            drain_seconds=drain_seconds,
        )
        serving.serve(options, Console())
    except UserError as error:
        raise _fail(error) from error
    except ModuleNotFoundError as error:  # of what reads and downloads models
        raise _fail(UserError(needs("fastgen serve", str(error.name)))) from error


def _words(given: Mapping[str, object]) -> tuple[str, ...]:
    """The words of a command line that say what was given."""
    pairs = [(key, str(value)) for key, value in given.items() if value is not None]
    return tuple(word for pair in pairs for word in pair)


@app.command()
def chat(
    url: arguments.Url = DEFAULT,
    model: arguments.ChatModel = None,
    message: arguments.MessageText = None,
    system: arguments.SystemMessage = None,
    temperature: arguments.Temperature = 0.2,
    max_tokens: arguments.MaxTokens = None,
) -> None:
    """Chat with a model; with -m or piped input, answer once as plain text.

    /reset forgets the conversation, /quit ends it, Ctrl-C stops an answer. OPENAI_API_KEY is sent
    when it is set.
    """
    # Half a second of imports that the other commands do without.
    from fastgen_cli import chat as chatting

    settings = chatting.Settings(url, model, system, temperature, max_tokens)
    text = message
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise _fail(UserError("Nothing to ask: standard input was empty; use -m TEXT."))
    try:
        conversation = chatting.start(settings)
        if text is not None:
            chatting.say_once(conversation, text, _write)
        else:
            chatting.talk(conversation, Console(), lambda: input("> "))
    except UserError as error:
        raise _fail(error) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


cluster_commands.add_to(app)
simulate_command.add_to(app)
bench_command.add_to(app)


if __name__ == "__main__":
    app()
