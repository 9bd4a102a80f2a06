"""A FastGenDeployment `chat` and its surroundings, as the commands for people read them."""

from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from fastgen_api import names
from fastgen_cli.explain import Explanation, explain
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_screen import show

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
CREATED = "2025-01-02T02:00:00Z"
EARLIER = "2025-01-02T03:01:05Z"
"""Three minutes ago."""

AUTO = {"scaling": {"mode": "Auto", "minReplicas": 1, "maxReplicas": 8}}
UNREADY = ("False", "RolloutInProgress", "replicas: 0 of 1 available")

Condition = tuple[str, str, str]
"""Status, reason and message."""


def resource(
    spec: dict[str, Any] | None = None,
    conditions: dict[str, Condition] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """As the API serves it; Ready with one replica unless something else is said."""
    told = {"Ready": ("True", "AsDeclared", "1 replicas serve the model")} | (conditions or {})
    return {
        "metadata": {
            "name": "chat", "namespace": "models", "generation": 2, "creationTimestamp": CREATED,
            "annotations": {}, "managedFields": [],
        },
        "spec": {"model": {"source": "file:///m.gguf"}, "replicas": 1} | (spec or {}),
        "status": {"observedGeneration": 2, "replicas": 1, "readyReplicas": 1}
        | status
        | {
            "conditions": [
                {"type": kind, "status": value, "reason": reason, "message": message}
                for kind, (value, reason, message) in told.items()
            ]
        },
    }  # fmt: skip


def pod(name: str = "chat-replica-a", component: str = "replica", **status: Any) -> dict[str, Any]:
    """A replica's pod; without a status it is ready."""
    ready = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container(ready=True, state={"running": {}})],
    }
    return {
        "metadata": {
            "name": name, "namespace": "models", "uid": name, "creationTimestamp": EARLIER,
            "labels": {
                names.DEPLOYMENT_LABEL: "chat",
                names.COMPONENT_LABEL: component,
                names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER,
            },
        },
        "status": status or ready,
    }  # fmt: skip


def container(name: str = "runtime", **status: Any) -> dict[str, Any]:
    """The status of a container that is not ready."""
    return {"name": name, "ready": False, "image": "runtime:1", "restartCount": 0} | status


def event(
    message: str, about: tuple[str, str] = (names.KIND, "chat"), **more: Any
) -> dict[str, Any]:
    """A Kubernetes event of a minute ago."""
    kind, name = about
    return {
        "metadata": {"uid": message, "creationTimestamp": EARLIER},
        "involvedObject": {"kind": kind, "name": name},
        "reason": "Told", "type": "Normal", "message": message,
        "lastTimestamp": "2025-01-02T03:03:05Z",
    } | more  # fmt: skip


def facts(found: dict[str, Any] | None = None, **more: Any) -> Facts:
    """Facts about `chat`, in namespace `models`."""
    return Facts(**{"resource": found or resource(), "flags": "-n models"} | more)


def decision(rule: str, replicas: int = 3, *blockers: str) -> dict[str, Any]:
    """The autoscaler's last one, three minutes ago."""
    return {
        "time": EARLIER, "rule": rule, "replicas": replicas, "blockers": list(blockers),
        "message": "5200 tokens/s are offered",
    }  # fmt: skip


def said(explanation: Explanation) -> str:
    """Everything that a person reads, in one line."""
    console = Console(width=500, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(explanation, console)
    return " ".join(console.export_text().split())


def why(found: dict[str, Any], **more: Any) -> str:
    """What a person reads of this resource, among facts as given."""
    return said(explain(facts(found, **more), NOW))
