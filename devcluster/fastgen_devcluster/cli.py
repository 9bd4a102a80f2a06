"""What a person types: python -m fastgen_devcluster VERB."""

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from fastgen_devcluster import buildah, images, lifecycle
from fastgen_devcluster.cluster import Cluster, own_kubeconfig
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.packages import require_root
from fastgen_devcluster.progress import console, format_seconds, step
from fastgen_devcluster.settings import Settings
from fastgen_devcluster.teardown import leftovers, take_down

# What happens to a newcomer: no network, no rights, no room. Anything else is a bug of ours.
FAILURES = (SetupError, CommandError, OSError)
INTERRUPTED = 130


class Verbs(TyperGroup):
    """Tells who interrupts a verb how to go on; typer by itself says nothing."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            console.print(
                "Interrupted. The same command goes on from here;"
                " `python -m fastgen_devcluster down` cleans up.",
                soft_wrap=True,
            )
            sys.exit(INTERRUPTED)


app = typer.Typer(
    cls=Verbs,
    help="A real Kubernetes on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def main() -> None:
    """Run a verb; what the reader can mend is told in one line."""
    try:
        app()
    except FAILURES as failure:
        console.print(f"[red]error:[/red] {escape(str(failure))}", soft_wrap=True)
        sys.exit(1)


def _is_own_cluster() -> bool:
    own = own_kubeconfig()
    if own:
        console.print(f"FASTGEN_KUBECONFIG is set: using your cluster ({own}) as it is.")
    return bool(own)


@app.command()
def up() -> None:
    """Start the cluster, or do nothing when it runs."""
    if _is_own_cluster():
        return
    require_root()
    settings = Settings.from_environment()
    started = time.monotonic()
    with lifecycle.locked(settings):
        if lifecycle.status(settings).is_up:
            console.print("The cluster is up.")
            return
        lifecycle.bring_up(settings)
    seconds = format_seconds(time.monotonic() - started)
    console.print(f"The cluster is up ({seconds}): {settings.kubeconfig}", soft_wrap=True)


@app.command()
def down() -> None:
    """Stop the cluster and remove everything but its images and logs."""
    if _is_own_cluster():
        return
    require_root()
    settings = Settings.from_environment()
    with lifecycle.locked(settings):
        with step("stop the cluster"):
            take_down(settings)
            images.remove_abandoned(settings)
        remaining = leftovers(settings)
    if remaining:
        raise SetupError(f"Still there: {', '.join(remaining)}.")
    console.print("The cluster is down.")


@app.command()
def clean() -> None:
    """Stop the cluster and remove everything: images, certificates, logs and compiled programs."""
    if _is_own_cluster():
        return
    down()
    settings = Settings.from_environment()
    with step("remove images, certificates and compiled programs"):
        shutil.rmtree(settings.state, ignore_errors=True)
        for name in ("base", "bin", "go"):
            shutil.rmtree(settings.cache / name, ignore_errors=True)
        if shutil.which("buildah"):
            for _, image in sorted(buildah.labelled(), reverse=True):
                buildah.remove(image)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell whether the cluster runs; exit 1 when it does not."""
    settings = Settings.from_environment()
    now = lifecycle.status(settings)
    if as_json:
        facts = {**asdict(now), "is_up": now.is_up, "kubeconfig": str(settings.kubeconfig)}
        print(json.dumps({**facts, "registry": settings.registry}))
    else:
        table = Table("process", "state", box=None)
        for name in lifecycle.processes(settings):
            table.add_row(name, "running" if name in now.running else "[red]not running[/red]")
        table.add_row("API", "ready" if now.api_ready else "[red]not ready[/red]")
        console.print(table)
    raise typer.Exit(0 if now.is_up else 1)


@app.command(name="load-image")
def load(name: Annotated[str, typer.Argument(help="An image of `buildah images`.")]) -> None:
    """Push a local image to the cluster's registry and print its reference."""
    print(images.load_image(name))


@app.command(name="build-images")
def build() -> None:
    """Build and push the images of this tree and print their references as JSON."""
    print(json.dumps(asdict(images.build_images())))


@app.command(context_settings=PASS_THROUGH)
def kubectl(context: typer.Context) -> None:
    """Run kubectl on the cluster."""
    cluster = Cluster.current()
    # No flag may stand before a plugin's name, and the plugins are beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    os.execve(cluster.kubectl, ["kubectl", *context.args], environment)


@app.command(context_settings=PASS_THROUGH)
def helm(context: typer.Context) -> None:
    """Run Helm on the cluster."""
    cluster = Cluster.current()
    flags = [f"--kubeconfig={cluster.kubeconfig}", *context.args]
    os.execv(cluster.helm, ["helm", *flags])
