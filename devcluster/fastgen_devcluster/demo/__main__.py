"""Entry point of `python -m fastgen_devcluster.demo`, which `make demo` runs."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import httpx2
import typer
from lightkube import ApiError
from lightkube.core.exceptions import ConfigError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fastgen_cli import chat
from fastgen_cli.errors import UserError
from fastgen_devcluster import cli
from fastgen_devcluster.cluster import Cluster, own_kubeconfig
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.demo import burst as bursts
from fastgen_devcluster.demo import installation, picture
from fastgen_devcluster.demo.deployment import Reader, State
from fastgen_devcluster.demo.endpoint import open_url
from fastgen_devcluster.demo.farewell import farewell
from fastgen_devcluster.demo.narration import DemoError, Narrator
from fastgen_devcluster.demo.verdict import Bounds, Comparison
from fastgen_devcluster.images import Images

STAGES: Final = 7
LINE_SECONDS: Final = 5.0
# The cluster's API was out of reach, refused, or the kubeconfig is not one.
CLUSTER_FAILURES: Final = (ApiError, ConfigError, httpx2.HTTPError)
QUESTION: Final = "In two sentences: what is gravity?"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def demo(
    fast: Annotated[bool, typer.Option(help="End after the first answer: no burst.")] = False,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", help="More KEY=VALUE for Helm, such as prometheus.url=URL."),
    ] = None,
) -> None:
    """Show FastGen on a Kubernetes of this machine, or on your own with FASTGEN_KUBECONFIG."""
    narrator = Narrator(Console(), STAGES - 2 if fast else STAGES)
    sys.exit(run_demo(narrator, fast, values or []))


def run_demo(narrator: Narrator, fast: bool, values: Sequence[str]) -> int:
    """All stages; 0 when everything that the demo promises happened."""
    cluster: Cluster | None = None
    try:
        cluster, images = _install(narrator, values)
        name = installation.example_name()
        reader = Reader.open(cluster.kubeconfig, name, installation.NAMESPACE)
        state = _deploy(narrator, cluster, images, reader)
        with open_url(cluster, name, installation.NAMESPACE) as url:
            _answer(narrator, url)
            if not fast:
                _burst(narrator, reader, state, url)
            farewell(narrator, cluster, url, name)
    except KeyboardInterrupt:
        clean_up = f"helm uninstall fastgen --namespace {installation.SYSTEM_NAMESPACE}"
        narrator.console.print(
            "\nInterrupted. `make demo` goes on from here;"
            f" `{clean_up if own_kubeconfig() else 'make demo-down'}` cleans up.",
            soft_wrap=True,
        )
        return cli.INTERRUPTED
    except (*cli.FAILURES, *CLUSTER_FAILURES, DemoError, UserError) as error:
        text = Text(f"\nThe demo stopped: {error}", style="red")
        narrator.console.print(text, highlight=False, soft_wrap=True)
        if cluster is not None and isinstance(error, DemoError):
            _describe(narrator, cluster)
        return 1
    return 0


def _install(narrator: Narrator, values: Sequence[str]) -> tuple[Cluster, Images]:
    with narrator.stage("Start Kubernetes", "Compiled once, which takes some minutes; then kept."):
        cluster = installation.start_cluster()
    with narrator.stage("Build the images", "From the Dockerfile; only what changed is built."):
        images = installation.make_images()
        narrator.say(f"{images.control}\n     {images.runtime}")
    with narrator.stage("Install FastGen", f"helm upgrade --install fastgen {installation.CHART}"):
        installation.install_chart(cluster, images, values)
    return cluster, images


def _deploy(narrator: Narrator, cluster: Cluster, images: Images, reader: Reader) -> State:
    path = installation.EXAMPLE
    with narrator.stage("Deploy a model with an SLO", f"kubectl apply -f {path}"):
        # On a cluster of the user's own nothing is deleted.
        if not cluster.is_own and installation.is_outdated(installation.look(reader), images):
            narrator.say("[dim]an earlier demo's replicas run an older image: starting anew[/dim]")
            installation.delete_example(cluster)
        installation.apply_example(cluster)
        return installation.wait_until_ready(reader, narrator, installation.READY_SECONDS)


def _answer(narrator: Narrator, url: str) -> None:
    with narrator.stage("A first answer", f"Streamed from a replica through Envoy at {url}/v1"):
        conversation = chat.start(chat.Settings(url, temperature=0, max_tokens=80))
        narrator.say(f"[bold]> {QUESTION}[/bold]")
        narrator.console.out("     ", end="")
        first = ""
        for piece in conversation.ask(QUESTION):
            first = first or narrator.elapsed()
            narrator.console.out(piece, end="", highlight=False)
            narrator.console.file.flush()
        narrator.console.print()
        if conversation.pace is None:
            raise DemoError("The answer was empty.")
        narrator.say(f"[dim]{conversation.pace.line()}[/dim]")
        narrator.say(f"[dim]the demo's first token came {first} after its start[/dim]")


def _burst(narrator: Narrator, reader: Reader, state: State, url: str) -> None:
    model = chat.first_model(chat.make_client(url), url)
    cpus = state.spec.resources.limits.get("cpu", "no limit")
    why = (
        f"Each replica may use {cpus} of a CPU (its limit), well below a core, and its threads "
        "follow that limit: a second replica is real capacity, even on this one machine."
    )
    bounds = Bounds()
    with narrator.stage("A burst of load", why):
        narrator.say(f"[dim]measuring what one replica carries ({bounds.calibrate:.0f} s)[/dim]")
        streams = min(bursts.CALIBRATION_STREAMS, state.spec.engine.max_concurrent_requests)
        carried = asyncio.run(bursts.calibrate(f"{url}/v1", model, streams, bounds.calibrate))
        narrator.say(f"one replica carries about {carried:.1f} such requests/s")
        with _screen(narrator.console) as show:
            burst = bursts.Burst(f"{url}/v1", model, reader, bounds, show, state)
            comparison = asyncio.run(bursts.run_burst(burst, carried))
        _tell(narrator, burst, comparison)
    with narrator.stage("The load has stopped", "The second replica is kept for a while."):
        with _screen(narrator.console) as show:
            burst.show = show
            asyncio.run(bursts.wait_for_one(burst))
        if burst.state.decision:
            narrator.say(f"autoscaler: {burst.state.decision.rule}: {burst.state.decision.message}")


def _tell(narrator: Narrator, burst: bursts.Burst, comparison: Comparison) -> None:
    """The numbers before and after; raises DemoError when the second replica did not help."""
    before, after = comparison.before, comparison.after
    if burst.scaled_by:
        narrator.say(f"autoscaler: 1 → 2, {burst.scaled_by.rule}: {burst.scaled_by.message}")
    for name, one in (("with one replica", before), ("with two", after)):
        narrator.say(
            f"{name:17} TTFT p50 {picture.seconds(one.ttft_p50_seconds)}, "
            f"p95 {picture.seconds(one.ttft_p95_seconds)}, "
            f"good {picture.percent(one.good_share)} of {one.requests} requests"
        )
    if not comparison.is_better:
        raise DemoError("The second replica did not make the first token come sooner.")


@contextmanager
def _screen(console: Console) -> Iterator[bursts.Show]:
    """How moments are shown: a live table, or a line every few seconds in a log."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda moment: live.update(picture.table(moment), refresh=True)
        return
    last = -LINE_SECONDS

    def show(moment: picture.Moment) -> None:
        nonlocal last
        if moment.at_seconds - last >= LINE_SECONDS * (3 if moment.is_quiet else 1):
            last = moment.at_seconds
            text = f"     {picture.line(moment)}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    yield show


def _describe(narrator: Narrator, cluster: Cluster) -> None:
    try:
        text = installation.describe(cluster, installation.example_name())
    except CommandError as error:
        text = str(error)
    narrator.console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
