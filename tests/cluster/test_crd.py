"""What a real API server stores and shows of a FastGenDeployment."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import Commands
from operator_process import chart_operator_asleep

from fastgen_api import names
from fastgen_devcluster.command import CommandError

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
MODEL = {"source": "file:///models/m.gguf"}
SINCE = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_accepted(cluster: Commands, namespace: str, path: Path) -> None:
    cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", str(path))


@pytest.fixture
def typo() -> str:
    return json.dumps(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "typo"},
            "spec": {"model": MODEL, "slos": {"targetPercent": "99"}},
        }
    )


def test_kubectl_refuses_an_unknown_field(cluster: Commands, namespace: str, typo: str) -> None:
    with pytest.raises(CommandError, match=r'unknown field "spec\.slos"'):
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=typo)


def test_others_are_warned_of_an_unknown_field(
    cluster: Commands, namespace: str, typo: str, tmp_path: Path
) -> None:
    """`--warnings-as-errors` makes kubectl fail on the header that every client receives."""
    words = ("create", "-n", namespace, "-f", "-", "--validate=warn", "--dry-run=server")
    stored = json.loads(cluster.kubectl(*words, "-o=json", stdin=typo))
    assert "slos" not in stored["spec"]
    with pytest.raises(CommandError, match=r'unknown field "spec\.slos"'):
        cluster.kubectl(*words, "--warnings-as-errors", stdin=typo)


@pytest.fixture(scope="module")
def stored(cluster: Commands, namespace: str) -> Iterator[str]:
    """A resource that is really there.

    Pausing it would keep an operator from making pods of it, not from writing its status.
    """
    with chart_operator_asleep(cluster):
        cluster.kubectl("create", "-n", namespace, "-f", str(REPOSITORY / "examples/minimal.yaml"))
        yield "minimal"
        cluster.kubectl("delete", "-n", namespace, "fgd", "minimal")


def test_defaults_are_not_stored(cluster: Commands, namespace: str, stored: str) -> None:
    """Rules see what the user wrote; only the scale subresource needs a value."""
    found = json.loads(cluster.kubectl("get", "-n", namespace, "fgd", stored, "-o=json"))
    assert found["spec"] == {
        "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
        "replicas": 1,
    }


def test_scale_subresource_reads_and_writes_replicas(
    cluster: Commands, namespace: str, stored: str
) -> None:
    get = ("get", "-n", namespace, "fgd", stored)
    scale = json.loads(cluster.kubectl(*get, "--subresource=scale", "-o=json"))
    assert scale["spec"]["replicas"] == 1
    cluster.kubectl("scale", "-n", namespace, f"fgd/{stored}", "--replicas=3")
    assert cluster.kubectl(*get, "-o=jsonpath={.spec.replicas}") == "3"
    with pytest.raises(CommandError, match="replicas"):
        cluster.kubectl("scale", "-n", namespace, f"fgd/{stored}", "--replicas=1001")


@pytest.mark.parametrize("server_side", ["false", "true"])
def test_applying_the_manifest_again_leaves_the_scale_alone(
    cluster: Commands, namespace: str, server_side: str
) -> None:
    """Whoever scales writes replicas; a manifest without them must not write them back."""
    name, apply = f"again-{server_side}", ("apply", f"--server-side={server_side}", "-f", "-")
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": MODEL},
    }
    cluster.kubectl(*apply, stdin=json.dumps(resource))
    cluster.kubectl("scale", "-n", namespace, f"fgd/{name}", "--replicas=4")
    resource["spec"] = {"model": MODEL, "slo": {"targetPercent": "95"}}
    cluster.kubectl(*apply, stdin=json.dumps(resource))
    found = json.loads(cluster.kubectl("get", "-n", namespace, "fgd", name, "-o=json"))
    assert found["spec"] == resource["spec"] | {"replicas": 4}


def test_columns_show_the_state(cluster: Commands, namespace: str, stored: str) -> None:
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": SINCE,
        }
        for kind, status, reason in (
            (names.Condition.READY, "False", "ModelNotFound"),
            (names.Condition.SLO_MET, "True", "TargetHeld"),
        )
    ]
    status = {
        "replicas": 2,
        "selector": "a=b",
        "slo": {"goodPercent": "99.7"},
        "conditions": conditions,
    }
    patch = ("patch", "-n", namespace, "fgd", stored, "--subresource=status", "--type=merge")
    cluster.kubectl(*patch, "-p", json.dumps({"status": status}))
    head, row = cluster.kubectl("get", "-n", namespace, "fgd", stored).splitlines()
    assert head.split() == ["NAME", "READY", "REPLICAS", "GOOD", "SLO", "REASON", "AGE"]
    assert row.split()[:-1] == [stored, "False", "2", "99.7", "True", "ModelNotFound"]
    selector = ("get", "-n", namespace, "fgd", stored, "--subresource=scale", "-o=json")
    assert json.loads(cluster.kubectl(*selector))["status"] == {"replicas": 2, "selector": "a=b"}


def test_explain_tells_a_user_what_a_field_means(cluster: Commands, namespace: str) -> None:
    told = cluster.kubectl("explain", "fgd.spec.slo.timeToFirstToken")
    assert "Longest wait from sending a request to its first token" in " ".join(told.split())
    assert "perPromptTokenMicroseconds" in told


def test_an_old_resource_keeps_a_value_that_is_refused_now(
    cluster: Commands, namespace: str, definition: Path
) -> None:
    """Ratcheting: a rule that comes with an upgrade does not block edits of what it now refuses."""
    relaxed = yaml.safe_load(definition.read_text())
    version = relaxed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del version["spec"]["properties"]["engine"]["x-kubernetes-validations"]
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f")
    cluster.kubectl(*apply, "-", stdin=json.dumps(relaxed))
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "old", "namespace": namespace},
        "spec": {
            "model": MODEL,
            "engine": {"maxConcurrentRequests": 200, "tokenBudget": {"maxTokens": 100}},
        },
    }
    try:
        _until_accepted(cluster, json.dumps(resource))
    finally:
        cluster.kubectl(*apply, str(definition))
    cluster.kubectl("scale", "-n", namespace, "fgd/old", "--replicas=2")
    cluster.kubectl("delete", "-n", namespace, "fgd", "old", "--timeout=30s")


def _until_accepted(cluster: Commands, resource: str) -> None:
    """The API server takes a moment to serve a new schema."""
    for _ in range(50):
        try:
            cluster.kubectl("create", "-f", "-", stdin=resource)
        except CommandError as failure:
            refusal = failure
        else:
            return
    raise refusal
