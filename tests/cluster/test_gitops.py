"""What becomes of a scaled `replicas` when its manifest is applied again: docs/operating.md."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from commands import Commands

from fastgen_devcluster.command import CommandError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SCALED = 3
"""What somebody made of it since: a person, an autoscaler, ours or another; all by /scale."""


def manifest(name: str, replicas: int | None, percent: str) -> dict[str, Any]:
    return {
        "apiVersion": "fastgen.dev/v1alpha1",
        "kind": "FastGenDeployment",
        # No operator is needed: this is between the API server and those who write the resource.
        "metadata": {"name": name, "annotations": {"fastgen.dev/paused": "true"}},
        "spec": {
            "model": {"source": "file:///models/none.gguf"},
            "slo": {"targetPercent": percent},
            "scaling": {"maxReplicas": 5},
        }
        | ({} if replicas is None else {"replicas": replicas}),
    }


class Tool:
    """One way to apply a manifest of a repository again and again."""

    def __init__(self, cluster: Commands, namespace: str, folder: Path, how: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.program, *self.flags = how.split()

    def apply(self, resource: dict[str, Any], again: bool = True) -> None:
        name = resource["metadata"]["name"]
        if self.program == "kubectl":
            words = ("apply", *self.flags, "-f", "-")
            self.cluster.kubectl("-n", self.namespace, *words, stdin=json.dumps(resource))
            return
        (self.folder / "templates").mkdir(exist_ok=True)
        (self.folder / "Chart.yaml").write_text("{apiVersion: v2, name: models, version: 0.1.0}")
        (self.folder / "templates/model.yaml").write_text(json.dumps(resource))
        verb = "upgrade" if again else "install"
        flags = self.flags if again else [each for each in self.flags if "force" not in each]
        self.cluster.helm("-n", self.namespace, verb, name, str(self.folder), *flags)


CLIENT_SIDE = "kubectl"
SERVER_SIDE = "kubectl --server-side"
FORCED = "kubectl --server-side --force-conflicts"
HELM = "helm"
HELM_CLIENT_SIDE = "helm --server-side=false"
NEVER, ALWAYS, REMOVED = (None, None), (1, 1), (1, None)
REFUSED = "refused"


@pytest.mark.parametrize(
    ("how", "declared", "outcome"),
    [
        (CLIENT_SIDE, NEVER, SCALED),
        (CLIENT_SIDE, ALWAYS, 1),
        (CLIENT_SIDE, REMOVED, 1),
        (SERVER_SIDE, NEVER, SCALED),
        (SERVER_SIDE, ALWAYS, REFUSED),
        (SERVER_SIDE, REMOVED, SCALED),
        (FORCED, NEVER, SCALED),
        (FORCED, ALWAYS, 1),
        (FORCED, REMOVED, SCALED),
        (HELM, NEVER, SCALED),
        (HELM, ALWAYS, REFUSED),
        (HELM, REMOVED, SCALED),
        (HELM_CLIENT_SIDE, NEVER, SCALED),
        (HELM_CLIENT_SIDE, ALWAYS, SCALED),
        (HELM_CLIENT_SIDE, REMOVED, 1),
    ],
)
def test_a_manifest_that_is_applied_again(
    cluster: Commands,
    namespace: str,
    tmp_path: Path,
    how: str,
    declared: tuple[int | None, int | None],
    outcome: int | str,
) -> None:
    tool = Tool(cluster, namespace, tmp_path, how)
    name = f"case-{uuid.uuid4().hex[:6]}"
    kubectl = lambda *words: cluster.kubectl("-n", namespace, *words)  # noqa: E731
    first, then = declared
    tool.apply(manifest(name, first, "90"), again=False)
    kubectl("scale", "fgd", name, f"--replicas={SCALED}")
    if outcome == REFUSED:
        with pytest.raises(CommandError, match=r"conflict(.|\n)*\.spec\.replicas"):
            tool.apply(manifest(name, then, "91"))
    else:
        tool.apply(manifest(name, then, "91"))
    spec = json.loads(kubectl("get", "fgd", name, "-o", "json"))["spec"]
    assert spec["replicas"] == (SCALED if outcome == REFUSED else outcome)
    assert spec["slo"]["targetPercent"] == ("90" if outcome == REFUSED else "91")


def test_replicas_are_taken_out_of_a_manifest_without_a_fall(
    cluster: Commands, namespace: str
) -> None:
    kubectl = lambda *words, stdin="": cluster.kubectl("-n", namespace, *words, stdin=stdin)  # noqa: E731
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest("handed-over", 1, "90")))
    kubectl("scale", "fgd", "handed-over", f"--replicas={SCALED}")
    without = json.dumps(manifest("handed-over", None, "91"))
    kubectl("apply", "set-last-applied", "-f", "-", stdin=without)
    kubectl("apply", "-f", "-", stdin=without)
    spec = json.loads(kubectl("get", "fgd", "handed-over", "-o", "json"))["spec"]
    assert (spec["replicas"], spec["slo"]["targetPercent"]) == (SCALED, "91")
