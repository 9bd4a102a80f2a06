"""The cluster of this test run, with this tree's CustomResourceDefinition."""

import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cluster_access import wait_until
from commands import Commands
from delivery_questions import hub_for_pods
from hub_server import HubServer
from lightkube import Client, KubeConfig
from operator_process import OperatorProcess, operator_in
from operator_questions import has_all_children
from operator_report import sections

from fastgen_api import names
from fastgen_cli.plan import free_ports
from fastgen_devcluster.cluster import Cluster

DEFINITION = Path(__file__).resolve().parents[2] / "crds/fastgendeployments.fastgen.dev.yaml"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its operator's namespace looks like then."""
    report = yield
    if report.failed and report.when != "teardown":
        for each in item.funcargs.values():
            if isinstance(each, OperatorProcess):
                report.sections += sections(each)
    return report


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
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A hub with one small model, which pods reach."""
    with hub_for_pods(tmp_path_factory.mktemp("hub") / "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def namespace(cluster: Commands, definition: Path) -> Iterator[str]:
    """A namespace for one module's tests."""
    name = f"fastgen-test-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def client(cluster: Commands, namespace: str) -> Client:
    """Asks the API server of the module's namespace to check, and to keep nothing."""
    return Client(KubeConfig.from_file(cluster.kubeconfig), namespace=namespace, dry_run=True)


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, definition: Path
) -> Iterator[OperatorProcess]:
    """An operator in a namespace of this module, not started; its images do not exist."""
    images = {"runtime": "127.0.0.1:1/none:1", "control": "127.0.0.1:1/none:1"}
    name = f"fastgen-operator-{uuid.uuid4().hex[:6]}"
    (port,) = free_ports(1)
    with operator_in(name, tmp_path_factory.mktemp("operator"), images, port) as operator:
        yield operator


@pytest.fixture
def operator(installed: OperatorProcess) -> OperatorProcess:
    """The operator, running."""
    if installed.process is None:
        installed.start()
    return installed


@pytest.fixture
def chat(operator: OperatorProcess) -> str:
    """A FastGenDeployment of the whole module, as it was created, with all its children."""
    if operator.find("fgd", "chat") is None:
        operator.create("chat")
    wait_until("children", lambda: has_all_children(operator, "chat"), seconds=20)
    wait_until("a status", lambda: operator.condition("chat", "Ready"), seconds=20)
    return "chat"
