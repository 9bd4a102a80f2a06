"""What an API server might hold of a FastGenDeployment `chat`, for tests of what is made of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fastgen_api.names import Component
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner, child_labels

OWNER = Owner("chat", "team", "uid-1", generation=3)
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def deployment(name: str, wanted: int, **status: Any) -> dict[str, Any]:
    counts = {"replicas": wanted, "updatedReplicas": wanted, "readyReplicas": wanted,
              "availableReplicas": wanted, "observedGeneration": 2}  # fmt: skip
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "generation": 2},
        "spec": {
            "replicas": wanted,
            "template": {"spec": {"containers": [{"name": "runtime", "image": "runtime:1"}]}},
        },
        "status": counts | status,
    }


def pod(component: Component = Component.REPLICA, *, ready: bool = False, **status: Any) -> Any:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "pod-1", "labels": child_labels(OWNER, component),
                     "creationTimestamp": "2025-01-01T00:00:00Z"},
        "status": {"conditions": [*status.pop("conditions", []), *conditions], **status},
    }  # fmt: skip


def container(name: str = "runtime", **status: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "image": "runtime:1", "state": {}} | status


def observed(
    replica: dict[str, Any] | None = None, *pods: Any, balancer: dict[str, Any] | None = None
) -> Observed:
    deployments = [replica or deployment("chat-replica", 2),
                   balancer or deployment("chat-balancer", 2)]  # fmt: skip
    return Observed({("Deployment", each["metadata"]["name"]): each for each in deployments}, pods)


STARTING = deployment("chat-replica", 2, readyReplicas=0, availableReplicas=0)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(each["message"]) for each in status["conditions"] if each["type"] == kind)


def crashed(text: str, code: int = 1, **more: Any) -> Any:
    end = {"terminated": {"exitCode": code, "reason": "Error", "message": text}}
    return pod(containerStatuses=[container(lastState=end, restartCount=1, **more)])
