"""What tests of the operator ask of a FastGenDeployment whose images do not exist."""

import time
from typing import Any

from cluster_access import wait_until
from operator_process import OperatorProcess

ALL_CHILDREN = {
    ("ServiceAccount", "{}-replica"),
    ("ServiceAccount", "{}-balancer"),
    ("Role", "{}-balancer"),
    ("RoleBinding", "{}-balancer"),
    ("ConfigMap", "{}-slo"),
    ("Service", "{}"),
    ("Service", "{}-replica"),
    ("PodDisruptionBudget", "{}-replica"),
    ("PodDisruptionBudget", "{}-balancer"),
    ("NetworkPolicy", "{}-replica"),
    ("NetworkPolicy", "{}-balancer"),
    ("Deployment", "{}-replica"),
    ("Deployment", "{}-balancer"),
}


def has_all_children(operator: OperatorProcess, name: str) -> bool:
    wanted = {(kind, template.format(name)) for kind, template in ALL_CHILDREN}
    return set(operator.children(name)) == wanted


def delete(operator: OperatorProcess, name: str) -> None:
    operator.kubectl("delete", "fgd", name, "--ignore-not-found", "--wait")
    wait_until("no children", lambda: not operator.children(name), seconds=60)


def is_stalled(operator: OperatorProcess, name: str) -> dict[str, Any] | None:
    """The condition Stalled when it holds."""
    stalled = operator.condition(name, "Stalled")
    return stalled if stalled.get("status") == "True" else None


def settled_writes(operator: OperatorProcess, since: float) -> list[str]:
    """The operator's writes since a time, once it has had time to make them."""
    time.sleep(5)
    return operator.writes(since)


def pull_failed_and_quiet(operator: OperatorProcess, name: str) -> None:
    """Waits until pods have settled on failing to be pulled."""
    wait_until(
        "the pull failure in the status",
        lambda: operator.condition(name, "Ready").get("reason") == "ImagePullBackOff",
        seconds=60,
    )
    wait_until("quiet", lambda: not operator.writes(time.time() - 5), seconds=90, pause=1)
