"""The command `fastgen`."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fastgen_api.spec import DType
from fastgen_cli import serve as serving
from fastgen_cli.errors import UserError
from fastgen_cli.plan import Options
from fastgen_cli.source import find_source

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
    model: Annotated[
        str, typer.Argument(help="A GGUF file, a Hugging Face folder, or `smollm2` (fetched once).")
    ],
    replicas: Annotated[
        int, typer.Option(min=1, max=64, help="More than one share a port through the balancer.")
    ] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the OpenAI API.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="gRPC port of one replica (default 9000); several use --port."
        ),
    ] = None,
    served_name: Annotated[
        str | None, typer.Option(help="Name that clients give as `model`; default: MODEL's name.")
    ] = None,
    dtype: Annotated[
        DType, typer.Option(case_sensitive=False, help="Type of weights and computation.")
    ] = DType.AUTO,
    max_model_length: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt and answer together, tokens.")
    ] = None,
    max_concurrent_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests that a replica runs at once.")
    ] = None,
    token_budget: Annotated[
        int | None, typer.Option(min=1, help="Tokens that one step of a replica may hold.")
    ] = None,
    slo_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON in the form of `spec.slo`."),
    ] = None,
    drain_seconds: Annotated[
        int, typer.Option(min=0, help="Time that running answers get on Ctrl-C.")
    ] = 30,
) -> None:
    """Serve MODEL over HTTP (OpenAI API) and gRPC until Ctrl-C."""
    if replicas > 1 and grpc_port is not None:
        raise typer.BadParameter(
            "several replicas serve HTTP and gRPC on --port", param_hint="--grpc-port"
        )
    given = {
        "--dtype": None if dtype is DType.AUTO else dtype.value,
        "--max-model-length": max_model_length,
        "--max-concurrent-requests": max_concurrent_requests,
        "--token-budget": token_budget,
        "--slo-file": slo_file,
    }
    engine = [word for key, value in given.items() if value is not None for word in (key, value)]
    try:
        source = find_source(model)
        if served_name:
            source = type(source)(source.path, served_name)
        options = Options(
            source=source,
            replicas=replicas,
            host=host,
            port=port,
            grpc_port=grpc_port or 9000,
            engine=tuple(str(word) for word in engine),
            drain_seconds=drain_seconds,
        )
        serving.serve(options, Console())
    except UserError as error:
        raise _fail(error) from error


@app.command()
def chat(
    url: Annotated[
        str, typer.Option(envvar="FASTGEN_URL", help="Any OpenAI endpoint; `/v1` may be left out.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Default: the first that the endpoint serves.")
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Ask this, print the answer and end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=2, help="0: the likeliest token each time; small models ramble at 1."
        ),
    ] = 0.2,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
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


if __name__ == "__main__":
    app()
