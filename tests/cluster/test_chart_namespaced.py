"""Two releases of the chart in two namespaces of one cluster: neither knows of the other."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Kubernetes, wait_until
from commands import Commands
from operator_process import audited, chart_operator_asleep

from fastgen_api import names
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CHART = str(Path(__file__).resolve().parents[2] / "charts/fastgen")
RELEASE = "fastgen"
CREATED = "creationTimestamp"
CHAT = f"{names.DEPLOYMENT_LABEL}=chat"
SMALLER_QUEUE = json.dumps({"spec": {"balancer": {"maxQueuedRequests": 7}}})


def get(cluster: Commands, namespace: str, *words: str) -> Any:
    return json.loads(cluster.kubectl("get", *words, "-n", namespace, "-o=json"))


def is_taken_up(cluster: Commands, namespace: str) -> bool:
    found = get(cluster, namespace, "fgd", "chat")
    observed = found.get("status", {}).get("observedGeneration")
    return bool(observed == found["metadata"]["generation"])


def rights(cluster: Commands, user: str, namespace: str) -> set[str]:
    return set(
        cluster.kubectl("auth", "can-i", "--list", f"--as={user}", "-n", namespace).split("\n")
    )


def account(namespace: str, name: str = RELEASE) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


@pytest.fixture(scope="module")
def homes(cluster: Commands, definition: Path) -> Iterator[tuple[str, str]]:
    """Two namespaces, a release in each that serves only there, and a resource `chat` in each."""
    images = build_images()
    found = tuple(f"fastgen-home-{uuid.uuid4().hex[:6]}" for _ in range(2))
    one, two = found

    def install(namespace: str) -> None:
        cluster.kubectl("create", "namespace", namespace)
        cluster.helm(
            "install", RELEASE, CHART, "-n", namespace, "--wait", "--timeout=2m",
            f"--set=images.control={images.control},images.runtime=127.0.0.1:1/none:1",
            f"--set=crds.enabled=false,watchNamespaces={{{namespace}}}",
        )  # fmt: skip
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "chat"},
            "spec": {
                "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
                "balancer": {"replicas": 1},
            },
        }
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))

    with chart_operator_asleep(Kubernetes(cluster.cluster)), ThreadPoolExecutor() as pool:
        try:
            list(pool.map(install, found))
            yield one, two
        finally:
            for namespace in found:
                cluster.kubectl(
                    "delete", "namespace", namespace, "--wait=false", "--ignore-not-found"
                )


def test_each_serves_its_own_namespace_and_no_other(
    cluster: Commands, homes: tuple[str, str]
) -> None:
    for namespace in homes:
        wait_until("a status", lambda n=namespace: is_taken_up(cluster, n), seconds=60)
    if cluster.cluster.audit_log is None:
        return
    since = datetime.fromisoformat(get(cluster, homes[0], "ns", homes[0])["metadata"][CREATED])
    log = list(audited(cluster.cluster.audit_log.read_text(), since.timestamp()))
    for namespace in homes:
        writes = [text for user, text in log if user == account(namespace)]
        assert writes
        assert not [text for text in writes if f"/namespaces/{namespace}/" not in text]


def test_its_operator_may_do_no_more_elsewhere_than_anybody(
    cluster: Commands, homes: tuple[str, str]
) -> None:
    one, two = homes
    assert rights(cluster, account(one), two) == rights(cluster, account(one, "nobody"), two)
    assert rights(cluster, account(one), one) > rights(cluster, account(one, "nobody"), one)


def test_the_removal_of_one_leaves_the_other_and_its_own_replicas(
    cluster: Commands, homes: tuple[str, str]
) -> None:
    one, two = homes
    kinds = "deployments,services,configmaps"
    before = {each["metadata"]["uid"] for each in get(cluster, one, kinds, "-l", CHAT)["items"]}
    assert before
    cluster.helm("uninstall", RELEASE, "-n", one, "--wait")
    cluster.kubectl("patch", "fgd", "chat", "-n", two, "--type=merge", "-p", SMALLER_QUEUE)
    wait_until("the edit is taken up", lambda: is_taken_up(cluster, two), seconds=30)
    after = {each["metadata"]["uid"] for each in get(cluster, one, kinds, "-l", CHAT)["items"]}
    assert after == before
    assert get(cluster, one, "fgd", "chat")
