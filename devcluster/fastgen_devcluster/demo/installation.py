"""Brings FastGen and the example onto the cluster."""

import time
from collections.abc import Sequence
from typing import Final

import yaml
from lightkube import ApiError
from rich.markup import escape

from fastgen_devcluster import cli, clients
from fastgen_devcluster.cluster import PROMETHEUS_IN_CLUSTER, Cluster
from fastgen_devcluster.demo.deployment import Reader, State, condition_changes
from fastgen_devcluster.demo.narration import DemoError, Narrator
from fastgen_devcluster.images import Images, build_images
from fastgen_devcluster.settings import REPOSITORY

SYSTEM_NAMESPACE: Final = "fastgen-system"
NAMESPACE: Final = "default"
EXAMPLE: Final = REPOSITORY / "examples" / "smollm2-cpu.yaml"
CHART: Final = REPOSITORY / "charts" / "fastgen"
READY_SECONDS: Final = 240.0


def start_cluster() -> Cluster:
    """The development cluster, or the user's own."""
    cli.up()
    return Cluster.current()


def make_images() -> Images:
    """Build the images from the Dockerfile and push them."""
    return build_images()


def install_chart(cluster: Cluster, images: Images, more_values: Sequence[str]) -> None:
    """Install or upgrade the operator, and wait until it runs."""
    values = [f"images.control={images.control}", f"images.runtime={images.runtime}"]
    prometheus = cluster.prometheus_url if cluster.is_own else PROMETHEUS_IN_CLUSTER
    if prometheus:
        values.append(f"prometheus.url={prometheus}")
    # On the cluster that is ours alone, a definition that a test left behind is no obstacle.
    adopt = () if cluster.is_own else ("--take-ownership", "--force-conflicts")
    clients.helm(
        cluster,
        *("upgrade", "--install", "fastgen", str(CHART), "--namespace", SYSTEM_NAMESPACE),
        *("--create-namespace", "--wait", "--timeout", "3m", "--set", ",".join(values)),
        *adopt,
        *(word for value in more_values for word in ("--set", value)),
    )


def example_name() -> str:
    """The name of the FastGenDeployment in the example."""
    return str(yaml.safe_load(EXAMPLE.read_text())["metadata"]["name"])


def is_outdated(state: State | None, images: Images) -> bool:
    """Whether an earlier demo left a deployment that runs other code than this tree's.

    The operator keeps replicas on their image until the spec changes, so that an upgrade of the
    chart restarts nobody's model.
    """
    return state is not None and state.runtime_image not in ("", images.runtime)


def delete_example(cluster: Cluster) -> None:
    """Delete the deployment and wait until its children are gone."""
    where = ("--namespace", NAMESPACE, "--ignore-not-found")
    clients.kubectl(
        cluster, "delete", "fgd", example_name(), *where, "--cascade=foreground", "--timeout=100s"
    )


def apply_example(cluster: Cluster) -> None:
    """kubectl apply, as a user would."""
    clients.kubectl(cluster, "apply", "--namespace", NAMESPACE, "--filename", str(EXAMPLE))


def wait_until_ready(reader: Reader, narrator: Narrator, bound_seconds: float) -> State:
    """Show the conditions as they change until one replica is ready; raises DemoError."""
    deadline = time.monotonic() + bound_seconds
    before: State | None = None
    while True:
        state = look(reader)
        if state is not None:
            for change in condition_changes(before, state):
                narrator.say(f"[dim]{escape(change)}[/dim]")
            if state.is_settled(1):
                return state
            before = state
        if time.monotonic() > deadline:
            raise DemoError(
                f"{reader.name} did not become Ready with one replica in {bound_seconds:.0f} s."
            )
        time.sleep(0.5)


def look(reader: Reader) -> State | None:
    """The deployment's state, or nothing when there is none."""
    try:
        return reader.read()
    except ApiError as error:
        if error.status.code == 404:
            return None
        raise


def describe(cluster: Cluster, name: str) -> str:
    """What kubectl says about the deployment, for an error report."""
    return clients.kubectl(cluster, "describe", "fgd", name, "--namespace", NAMESPACE)
