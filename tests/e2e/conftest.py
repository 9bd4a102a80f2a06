"""One FastGen installation on the real cluster, shared by the whole test session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import NAMESPACE, Kubernetes, wait_until

from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.demo.endpoint import open_url
from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE, install_chart
from fastgen_devcluster.images import build_images

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "smollm2"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster.current()


@pytest.fixture(scope="session")
def kubernetes(cluster: Cluster) -> Kubernetes:
    return Kubernetes(cluster)


@pytest.fixture(scope="session")
def installation(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """The chart, installed by Helm with the images of this tree."""
    install_chart(kubernetes.cluster, build_images(), ())
    kubernetes.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    kubernetes.kubectl("create", "namespace", NAMESPACE)
    yield kubernetes
    kubernetes.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    # An operator that watches all namespaces would take part in the other tests.
    kubernetes.helm("uninstall", "fastgen", "--namespace", SYSTEM_NAMESPACE, "--wait")
    kubernetes.kubectl("delete", "namespace", SYSTEM_NAMESPACE, "--wait")


@pytest.fixture(scope="session")
def example() -> dict[str, Any]:
    """The demo's FastGenDeployment, as the starting point of the tests."""
    manifest = yaml.safe_load((REPOSITORY / "examples/smollm2-cpu.yaml").read_text())
    manifest["metadata"] = {"name": NAME}
    return dict(manifest)


@pytest.fixture(scope="session")
def deployment(installation: Kubernetes, example: dict[str, Any]) -> Kubernetes:
    """The FastGenDeployment, Ready with one replica; the autoscaler switched off."""
    example["spec"]["scaling"] |= {"mode": "Disabled"}
    installation.apply(example)
    wait_until("Ready", lambda: installation.is_settled(NAME, 1), seconds=180)
    return installation


@pytest.fixture(scope="session")
def address(deployment: Kubernetes) -> Iterator[str]:
    """Where this machine reaches the client Service: `host[:port]`."""
    with open_url(deployment.cluster, NAME, NAMESPACE) as base:
        yield base.removeprefix("http://")


@pytest.fixture(scope="session")
def url(address: str) -> str:
    """Base URL of the OpenAI API."""
    return f"http://{address}/v1"
