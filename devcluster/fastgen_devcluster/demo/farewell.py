"""Leaves the reader with something to play with."""

import sys
from pathlib import Path

from fastgen_devcluster import clients
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.demo.installation import NAMESPACE
from fastgen_devcluster.demo.narration import Narrator
from fastgen_devcluster.settings import REPOSITORY


def kubectl_prefix(cluster: Cluster) -> str:
    """What to type for kubectl on this cluster."""
    if cluster.is_own:
        return f"KUBECONFIG={cluster.kubeconfig} kubectl"
    return f"{_near(Path(sys.executable))} -m fastgen_devcluster kubectl"


def _near(path: Path) -> str:
    """A path as typed in the repository."""
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)


def next_commands(cluster: Cluster, url: str, name: str) -> list[tuple[str, str]]:
    """Three things to try: what it does, and what to type."""
    kubectl = kubectl_prefix(cluster)
    fastgen = _near(Path(sys.executable).parent / "fastgen")
    where = f"{name} --namespace {NAMESPACE}"
    patch = '{"spec":{"slo":{"timeToFirstToken":{"milliseconds":500}}}}'
    chat = f"{fastgen} chat --url {url}"
    if cluster.is_own:
        forward = f"{kubectl} port-forward --namespace {NAMESPACE} service/{name} 8080:80 &"
        chat = f"{forward} {fastgen} chat --url http://127.0.0.1:8080"
    return [
        ("talk to the model", chat),
        (
            "see why it has as many replicas as it has",
            f"KUBECONFIG={cluster.kubeconfig} {fastgen} explain {where}",
        ),
        (
            "ask for a faster first token; nothing restarts",
            f"{kubectl} patch fgd {where} --type merge --patch '{patch}'",
        ),
    ]


def farewell(narrator: Narrator, cluster: Cluster, url: str, name: str) -> None:
    """`kubectl get fgd`, the URL and the next commands."""
    console = narrator.console
    console.print(f"\n[bold green]All done[/bold green] in {narrator.elapsed()}.\n")
    command = ("get", "fgd", "--namespace", NAMESPACE)
    console.print(f"$ {kubectl_prefix(cluster)} {' '.join(command)}", soft_wrap=True)
    console.print(clients.kubectl(cluster, *command), markup=False, highlight=False, soft_wrap=True)
    if not cluster.is_own:
        console.print(f"OpenAI API and gRPC: [bold]{url}/v1[/bold]\n", highlight=False)
    for what, text in next_commands(cluster, url, name):
        console.print(f"[dim]# {what}[/dim]", highlight=False)
        console.print(f"{text}\n", markup=False, highlight=False, soft_wrap=True)
    if not cluster.is_own:
        console.print("[dim]# remove everything[/dim]\nmake demo-down", highlight=False)
