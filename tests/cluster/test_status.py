"""What the status of a FastGenDeployment tells people, Helm and other programs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import wait_until
from kstatus import kstatus
from operator_process import OperatorProcess, operator_in

from fastgen_devcluster.command import CommandError
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-status"
SPEC = {
    "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
    "engine": {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4},
    "scaling": {"mode": "Disabled"},
    "balancer": {"replicas": 1},
    "rollout": {"drainSeconds": 5},
    "resources": {
        "requests": {"cpu": "100m", "memory": "512Mi"},
        "limits": {"memory": "1536Mi"},
    },
}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator that is not started yet."""
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18093) as operator:
        yield operator


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart as a team would write it, with one FastGenDeployment named as the release."""
    folder = tmp_path_factory.mktemp("chart")
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: chat\nversion: 0.1.0\n")
    manifest = yaml.safe_dump({"apiVersion": "fastgen.dev/v1alpha1", "kind": "FastGenDeployment",
                               "metadata": {"name": "NAME"}, "spec": SPEC})  # fmt: skip
    (folder / "templates").mkdir()
    text = manifest.replace("NAME", "{{ .Release.Name }}")
    (folder / "templates" / "fgd.yaml").write_text(text)
    return folder


def install(operator: OperatorProcess, chart: Path, name: str, seconds: int) -> float:
    """Installs and waits as Helm does; returns how long that took."""
    began = time.monotonic()
    operator.kubernetes.helm(
        *("install", name, str(chart), f"--namespace={NAMESPACE}"),
        *("--wait", f"--timeout={seconds}s"),
    )
    return time.monotonic() - began


def test_what_no_operator_has_seen_is_under_way(operator: OperatorProcess) -> None:
    assert operator.process is None
    operator.create("unseen")
    found = operator.get("fgd", "unseen")
    assert found["status"] == {"observedGeneration": -1}
    assert kstatus(found) == "InProgress"
    operator.kubectl("delete", "fgd", "unseen")


def test_helm_waits_until_the_model_is_served(operator: OperatorProcess, chart: Path) -> None:
    operator.start()
    install(operator, chart, "web", seconds=180)
    found = operator.get("fgd", "web")
    assert kstatus(found) == "Current"
    assert operator.condition("web", "Ready")["status"] == "True"
    assert operator.get("deployment", "web-replica")["status"]["availableReplicas"] == 1


def test_helm_does_not_wait_for_what_is_stalled(operator: OperatorProcess, chart: Path) -> None:
    operator.kubectl("create", "service", "clusterip", "taken", "--tcp=80")
    began = time.monotonic()
    with pytest.raises(CommandError, match="Service taken exists already and is not ours"):
        install(operator, chart, "taken", seconds=120)
    assert time.monotonic() - began < 60, "it failed at once, not after its patience"
    found = operator.get("fgd", "taken")
    assert kstatus(found) == "Failed"
    assert operator.condition("taken", "Stalled")["reason"] == "NameConflict"
    operator.kubernetes.helm("uninstall", "taken", f"--namespace={NAMESPACE}")


def test_the_columns_tell_how_it_is(operator: OperatorProcess) -> None:
    heads, row = operator.kubectl("get", "fgd", "web").splitlines()
    assert heads.split() == ["NAME", "READY", "REPLICAS", "GOOD", "SLO", "REASON", "AGE"]
    assert row.split()[:3] == ["web", "True", "1"]
    assert "AsDeclared" in row


def test_a_condition_of_a_removed_feature_vanishes(operator: OperatorProcess) -> None:
    """An earlier operator wrote it under the name by which this one applies, too."""
    found = operator.get("fgd", "web")
    obsolete = {"type": "Sparkling", "status": "True", "reason": "Long", "message": "ago",
                "lastTransitionTime": "2025-01-01T00:00:00Z"}  # fmt: skip
    theirs = ("SLOMet", "ScalingActive")
    status = found["status"]
    status["conditions"] = [
        obsolete,
        *(each for each in status["conditions"] if each["type"] not in theirs),
    ]
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=fastgen-operator")
    manifest = {"apiVersion": found["apiVersion"], "kind": found["kind"],
                "metadata": {"name": "web"}, "status": status}  # fmt: skip
    operator.kubectl(*apply, "--subresource=status", "-f", "-", stdin=json.dumps(manifest))
    wait_until("it is gone", lambda: not operator.condition("web", "Sparkling"), seconds=20)
    assert operator.condition("web", "Ready")["status"] == "True"


def reason_and_message(operator: OperatorProcess, reason: str) -> str:
    def told() -> str:
        found = operator.condition("web", "Ready")
        return str(found["message"]) if found["reason"] == reason else ""

    return str(wait_until(reason, told, seconds=60))


def test_what_a_pod_lacks_is_told_in_a_sentence(operator: OperatorProcess) -> None:
    """A secret that a container reads, then one that is mounted; the old replica serves on."""
    secret = {"secretKeyRef": {"name": "team-key", "key": "token"}}
    runtime: dict[str, Any] = {"name": "runtime", "env": [{"name": "KEY", "valueFrom": secret}]}
    operator.patch("web", {"podTemplate": {"spec": {"containers": [runtime]}}})
    message = reason_and_message(operator, "CreateContainerConfigError")
    assert message == (
        'container runtime cannot be made: secret "team-key" not found. Create it in namespace '
        f"{NAMESPACE}, or correct spec.podTemplate"
    )
    volume = {"name": "extra", "secret": {"secretName": "team-certificates"}}
    runtime = {"name": "runtime", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}
    template = {"spec": {"containers": [runtime], "volumes": [volume]}}
    operator.patch("web", {"podTemplate": template})
    message = reason_and_message(operator, "FailedMount")
    assert 'secret "team-certificates" not found. Create it in namespace' in message
    assert operator.condition("web", "RolloutBlocked")["reason"] == "FailedMount"
    assert operator.condition("web", "Available")["status"] == "True"
    described = operator.kubectl("describe", "fgd", "web")
    events = described[described.index("Events:") :]
    for reason in ("Created", "Ready", "CreateContainerConfigError", "FailedMount"):
        assert reason in events
    assert "1 replica serves the model" in events
    operator.patch("web", {"podTemplate": None})
    wait_until("Ready", lambda: operator.condition("web", "Ready")["status"] == "True", seconds=60)
