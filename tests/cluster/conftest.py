"""The cluster of this test run, with this tree's CustomResourceDefinition."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Commands

from fastgen_api import names
from fastgen_devcluster.cluster import Cluster

DEFINITION = Path(__file__).resolve().parents[2] / "crds/fastgendeployments.fastgen.dev.yaml"


@pytest.fixture(scope="session")
def cluster() -> Commands:
    return Commands(Cluster.current())


@pytest.fixture(scope="session")
def definition(cluster: Commands) -> Path:
    """The definition's file; the cluster serves it, and keeps it: charts come to use it."""
    name = f"{names.PLURAL}.{names.GROUP}"
    # As Helm would: a later installation of the chart finds its own field manager.
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=helm")
    cluster.kubectl(*apply, "-f", str(DEFINITION))
    cluster.kubectl("wait", "--for=condition=Established", "crd", name)
    return DEFINITION


@pytest.fixture(scope="module")
def namespace(cluster: Commands, definition: Path) -> Iterator[str]:
    """A namespace for one module's tests."""
    name = f"fastgen-test-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
