"""What Helm does to the definition and to resources: upgrade, rollback, removal, return.

The charts are the previous release's, as packaged in `previous/`, and this tree's. Both define
their resource under another group, so that nobody else's resources meet an older definition.
"""

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Commands

from fastgen_api import names
from fastgen_devcluster.command import CommandError

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
PREVIOUS = Path(__file__).parent / "previous" / "fastgen-0.1.0.tgz"
GROUP = f"upgrade.{names.GROUP}"
RESOURCE = f"{names.PLURAL}.{GROUP}"
RELEASE = "upgraded"
SPEC = {
    "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
    "slo": {"timeToFirstToken": {"milliseconds": 500}},
    "rollout": {"drainSeconds": 30},
}


@dataclass(frozen=True)
class Release:
    """A release of both charts, one after the other, and one resource that outlives them."""

    cluster: Commands
    namespace: str
    previous: str
    current: str

    def helm(self, *words: str, values: str = "") -> str:
        images = "images.control=none:1,images.runtime=none:1,images.pullPolicy=Never"
        quiet = f"rbac.aggregateRoles=false,watchNamespaces={{{self.namespace}}}"
        given = f"--set={','.join(filter(None, (images, quiet, values)))}"
        return self.cluster.helm(*words, given, "-n", self.namespace)

    def find(self) -> dict[str, Any]:
        text = self.cluster.kubectl("get", RESOURCE, "chat", "-n", self.namespace, "-o=json")
        return dict(json.loads(text))

    def patch(self, body: dict[str, Any], *flags: str) -> None:
        words = ("patch", RESOURCE, "chat", "-n", self.namespace, "--type=merge", *flags)
        self.cluster.kubectl(*words, "-p", json.dumps(body))

    def has_definition(self) -> bool:
        found = self.cluster.kubectl("get", "crd", RESOURCE, "--ignore-not-found", "-o=name")
        return bool(found.strip())


def with_other_group(chart: Path) -> str:
    for template in (chart / "templates").iterdir():
        text = template.read_text().replace(names.GROUP, GROUP).replace("[fgd]", "[]")
        template.write_text(text)
    return str(chart)


@pytest.fixture(scope="module")
def release(
    cluster: Commands, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The previous chart, installed, and a resource that was made under it."""
    folder = tmp_path_factory.mktemp("charts")
    with tarfile.open(PREVIOUS) as archive:
        archive.extractall(folder / "previous", filter="data")
    shutil.copytree(REPOSITORY / "charts/fastgen", folder / "current")
    found = Release(
        cluster,
        namespace,
        previous=with_other_group(folder / "previous/fastgen"),
        current=with_other_group(folder / "current"),
    )
    try:
        found.helm("install", RELEASE, found.previous)
        cluster.kubectl("wait", "--for=condition=Established", "crd", RESOURCE)
        manifest = {
            "apiVersion": f"{GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "metadata": {"name": "chat"},
            "spec": SPEC,
        }
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
        found.patch({"status": {"observedGeneration": 1, "replicas": 1}}, "--subresource=status")
        yield found
    finally:
        cluster.helm("uninstall", RELEASE, "-n", namespace, "--ignore-not-found")
        cluster.kubectl("delete", "crd", RESOURCE, "--ignore-not-found", "--timeout=60s")


def test_an_upgrade_brings_new_fields_and_touches_no_resource(release: Release) -> None:
    with pytest.raises(CommandError, match="sharedMemory is not supported by this version"):
        release.patch({"spec": {"sharedMemory": "1Gi"}})
    before = release.find()
    # As most upgrade: with the values of before, to which newer ones must find their defaults.
    release.cluster.helm(
        "upgrade", RELEASE, release.current, "-n", release.namespace, "--reuse-values"
    )
    assert release.find() == before
    release.patch({"spec": {"sharedMemory": "1Gi"}})
    progress = {"model": {"phase": "Downloading", "sizeBytes": 10**10, "downloadedPercent": 40}}
    release.patch({"status": progress}, "--subresource=status")
    after = release.find()
    assert after["spec"] == before["spec"] | {"sharedMemory": "1Gi"}
    assert after["status"]["model"] == progress["model"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_rollback_keeps_the_resource_and_the_way_forward(release: Release) -> None:
    before = release.find()
    release.cluster.helm("rollback", RELEASE, "1", "-n", release.namespace)
    assert release.find()["metadata"]["uid"] == before["metadata"]["uid"]
    release.helm("upgrade", RELEASE, release.current)
    # Nobody wrote it meanwhile, so that the older definition has cost nothing.
    assert release.find() == before


def test_removal_keeps_definition_and_resource_and_a_return_takes_them_up(
    release: Release,
) -> None:
    before = release.find()
    release.cluster.helm("uninstall", RELEASE, "-n", release.namespace)
    assert release.find() == before
    with pytest.raises(CommandError, match="invalid ownership metadata"):
        release.helm("install", "another", release.current)
    release.helm("install", RELEASE, release.current)
    assert release.find() == before
    release.cluster.helm("uninstall", RELEASE, "-n", release.namespace)
    release.helm("install", "another", release.current, "--take-ownership")
    assert release.find() == before
    release.cluster.helm("uninstall", "another", "-n", release.namespace)
    release.helm("install", RELEASE, release.current, "--take-ownership")
    assert release.find() == before


def test_leaving_the_definition_out_keeps_what_is_there(release: Release) -> None:
    before = release.find()
    release.helm("upgrade", RELEASE, release.current, values="crds.enabled=false")
    assert release.find() == before
    manifest = release.cluster.helm("get", "manifest", RELEASE, "-n", release.namespace)
    assert "kind: CustomResourceDefinition" not in manifest
    release.helm("upgrade", RELEASE, release.current)
    assert release.find() == before


def test_without_keep_a_removal_takes_the_definition(release: Release) -> None:
    release.helm("upgrade", RELEASE, release.current, values="crds.keep=false")
    release.cluster.helm("uninstall", RELEASE, "-n", release.namespace)
    release.cluster.kubectl("wait", "--for=delete", f"crd/{RESOURCE}", "--timeout=60s")
    assert not release.has_definition()
