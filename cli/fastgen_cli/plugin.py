"""The program `kubectl-fastgen`, which kubectl runs as `kubectl fastgen`."""

import typer

from fastgen_cli import cluster_commands

app = typer.Typer(
    name="kubectl fastgen",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look at FastGenDeployments: why, and how they are doing.",
)
cluster_commands.add_to(app)


@app.callback()
def plugin() -> None:
    """Look at FastGenDeployments: why, and how they are doing."""


def run() -> None:
    """The entry point; the program goes by the name that its user typed."""
    app(prog_name="kubectl fastgen")


if __name__ == "__main__":
    run()
