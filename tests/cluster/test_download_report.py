"""What a download tells of itself, taken by a real API server with the rights that it has there."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Commands

from fastgen_api import names
from fastgen_api.delivery import DOWNLOAD_MANAGER, DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.config_map import ConfigMap, SupersededError, UnreportedError
from fastgen_runtime.sources.delivery_report import DeliveryReport
from fastgen_runtime.sources.progress import Progress

pytestmark = pytest.mark.cluster

NAME = names.model_config_map_name("chat")
ACCOUNT = names.download_name("chat")
ROOT = Path("/models")


@pytest.fixture(scope="module")
def account(
    cluster: Commands, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The API server, and a folder as the kubelet mounts it, of one that may patch a ConfigMap."""
    kubectl = ("-n", namespace, "create")
    cluster.kubectl(*kubectl, "serviceaccount", ACCOUNT)
    one = ("--resource=configmaps", f"--resource-name={NAME}")
    cluster.kubectl(*kubectl, "role", ACCOUNT, "--verb=get,patch", *one)
    bound = (f"--role={ACCOUNT}", f"--serviceaccount={namespace}:{ACCOUNT}")
    cluster.kubectl(*kubectl, "rolebinding", ACCOUNT, *bound)
    folder = tmp_path_factory.mktemp("account")
    (folder / "token").write_text(cluster.kubectl(*kubectl, "token", ACCOUNT))
    (folder / "namespace").write_text(namespace)
    access = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(access["certificate-authority-data"]))
    return access["server"], folder


@pytest.fixture
def config_map(cluster: Commands, namespace: str) -> Iterator[str]:
    """An empty one, applied by the operator."""
    metadata = {"name": NAME, "labels": {names.DEPLOYMENT_LABEL: "chat"}}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    apply = ("apply", "--server-side", f"--field-manager={names.OPERATOR_MANAGER}", "-f", "-")
    cluster.kubectl("-n", namespace, *apply, stdin=json.dumps(manifest))
    yield NAME
    cluster.kubectl("-n", namespace, "delete", "configmap", NAME)


def data(cluster: Commands, namespace: str) -> dict[str, Any]:
    found = json.loads(cluster.kubectl("-n", namespace, "get", "configmap", NAME, "-o", "json"))
    return dict(found.get("data", {}))


def writer(account: tuple[str, Path], key: str = "0a1b2c3d", name: str = NAME) -> ConfigMap:
    server, folder = account
    return ConfigMap(name, key, server=server, account=folder)


@pytest.mark.usefixtures("config_map")
def test_a_download_tells_how_far_it_is(
    cluster: Commands, namespace: str, account: tuple[str, Path]
) -> None:
    progress = Progress()
    report = DeliveryReport(writer(account), progress, ROOT)
    progress.resolved("c0ffee", ROOT / "huggingface" / "m", 1000)
    progress.waits("throttled by hub: again in 40 s")
    with report.running():
        while not (told := data(cluster, namespace)):
            pass
    known = {"key": "0a1b2c3d", "revision": "c0ffee", "path": "huggingface/m", "sizeBytes": "1000"}
    assert told == known | {
        "state": "Downloading",
        "downloadedBytes": "0",
        "reason": "DownloadFailed",
        "message": "throttled by hub: again in 40 s",
    }
    # Somebody else writes the object meanwhile, and not what the download is about.
    cluster.kubectl("-n", namespace, "label", "configmap", NAME, "team=chat")
    progress.has("m", 1000)
    assert report.end(DeliveryState.DELIVERED)
    assert data(cluster, namespace) == known | {"state": "Delivered", "downloadedBytes": "1000"}
    show = ("-n", namespace, "get", "configmap", NAME, "--show-managed-fields", "-o", "json")
    managers = json.loads(cluster.kubectl(*show))["metadata"]["managedFields"]
    assert DOWNLOAD_MANAGER in [entry["manager"] for entry in managers]


@pytest.mark.usefixtures("config_map")
def test_a_replaced_download_overwrites_nothing(
    cluster: Commands, namespace: str, account: tuple[str, Path]
) -> None:
    old, new = writer(account, "old"), writer(account, "new")
    old.merge({"state": "Downloading"})
    new.merge({"state": "Delivered"})
    with pytest.raises(SupersededError):
        old.merge({"state": "Failed"})
    assert data(cluster, namespace) == {"key": "new", "state": "Delivered"}
    progress = Progress()
    late = DeliveryReport(old, progress, ROOT)
    assert late.end(DeliveryState.FAILED, (StartupFailure.MODEL_INVALID, "x"))
    assert data(cluster, namespace) == {"key": "new", "state": "Delivered"}


@pytest.mark.usefixtures("config_map")
def test_the_next_attempt_learns_what_was_resolved(account: tuple[str, Path]) -> None:
    writer(account).merge({"state": "Failed", "revision": "c0ffee"})
    progress = Progress()
    assert DeliveryReport(writer(account), progress, ROOT).pinned() == "c0ffee"
    assert progress.told.revision == "c0ffee"
    assert DeliveryReport(writer(account, "another"), Progress(), ROOT).pinned() is None


def test_a_configmap_that_was_made_anew_is_written_again(
    cluster: Commands, namespace: str, account: tuple[str, Path], config_map: str
) -> None:
    own = writer(account)
    own.merge({"state": "Downloading"})
    cluster.kubectl("-n", namespace, "delete", "configmap", config_map)
    cluster.kubectl("-n", namespace, "create", "configmap", config_map)
    own.merge({"state": "Delivered"})
    assert data(cluster, namespace) == {"key": "0a1b2c3d", "state": "Delivered"}


@pytest.mark.usefixtures("config_map")
def test_what_the_account_may_not_is_told(account: tuple[str, Path]) -> None:
    with pytest.raises(UnreportedError, match=r"403: .*cannot get resource \"configmaps\""):
        writer(account, name="another").merge({"state": "Downloading"})
