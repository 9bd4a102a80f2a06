"""What `fastgen` and `kubectl fastgen` have in common: the commands that look at a cluster."""

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from fastgen_cli.errors import UserError
from fastgen_cli.explain_command import Output
from fastgen_cli.kubeconfig import Target

UNTOLD: Final = 2
"""Exit code when nothing could be told: no cluster, no such name, no right; typer's for usage."""

Name = Annotated[str, typer.Argument(help="Name of the FastGenDeployment.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Default: the kubeconfig's.", show_default=False),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.", show_default=False)]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, help="Default: KUBECONFIG, then ~/.kube/config.", show_default=False
    ),
]
OutputForm = Annotated[
    Output, typer.Option("--output", "-o", case_sensitive=False, help="For people or programs.")
]

AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Those of all namespaces.")
]
Once = Annotated[
    bool, typer.Option("--once", help="Print one table and end, as without a terminal.")
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option(
        envvar="FASTGEN_PROMETHEUS_URL",
        help="Take the figures from this Prometheus, such as http://127.0.0.1:9090.",
        show_default=False,
    ),
]


def explain(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: OutputForm = Output.TEXT,
) -> None:
    """Say why NAME has this many replicas, why it is not ready, and what to do.

    Reads what the cluster role `view` allows, and changes nothing.

    Exit code: 0 NAME is ready, 1 it is not, 2 nothing could be told.
    """
    from fastgen_cli.explain_command import explain_name

    target = Target(context, namespace, kubeconfig)
    try:
        code = explain_name(name, target, output, Console())
    except UserError as error:
        raise _fail(error) from error
    raise typer.Exit(code)


def top(
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
    once: Once = False,
    prometheus_url: PrometheusUrl = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show how FastGenDeployments are doing, every two seconds, until q.

    Live figures come from the pods through the API server, for whoever may get pods/proxy (the
    cluster role edit), or from --prometheus-url; without either the status is shown.
    """
    from fastgen_cli.top_command import top as show

    target = Target(context, namespace, kubeconfig)
    try:
        show(target, everywhere, once, prometheus_url, Console())
    except UserError as error:
        raise _fail(error) from error


def add_to(app: typer.Typer) -> None:
    """Gives the commands to a program."""
    app.command()(explain)
    app.command()(top)


def _fail(error: UserError) -> typer.Exit:
    Console(stderr=True).print(
        str(error), style="red", highlight=False, markup=False, soft_wrap=True
    )
    return typer.Exit(UNTOLD)
