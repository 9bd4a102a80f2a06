"""What a reconcile sees of a FastGenDeployment's children, and simple questions about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastgen_api import names
from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import Id


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something is not as declared: a CamelCase reason and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The children of one FastGenDeployment, as the API server holds them."""

    children: Mapping[Id, KubernetesObject] = field(default_factory=dict)
    pods: tuple[KubernetesObject, ...] = ()
    scalers: tuple[ForeignScaler, ...] = ()
    """Other people's autoscalers of the resource and of its Deployments."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How far a Deployment is; the counts of pods are those of its status."""

    wanted: int = 0
    existing: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    is_current: bool = False
    """Whether the Deployment's controller has seen its latest form."""
    deadline: Problem | None = None
    """It made no progress for too long."""
    failure: Problem | None = None
    """Pods cannot even be created: quota or admission."""

    @property
    def complete(self) -> bool:
        """Whether every wanted pod runs the latest form and serves, and no other pod is left."""
        return self.is_current and self.wanted == self.existing == self.updated == self.available


def deployment_of(observed: Observed, name: str, component: Component) -> KubernetesObject | None:
    """The Deployment of a component of the FastGenDeployment `name`."""
    child = names.replica_name if component is Component.REPLICA else names.balancer_name
    return observed.children.get(("Deployment", child(name)))


def replicas_of(deployment: KubernetesObject | None) -> Replicas:
    """Reads how far a Deployment is; one that does not exist is nowhere."""
    if deployment is None:
        return Replicas()
    status = deployment.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    return Replicas(
        wanted=deployment["spec"].get("replicas", 1),
        existing=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        is_current=status.get("observedGeneration", 0) >= deployment["metadata"]["generation"],
        deadline=_problem(conditions, "Progressing", "False"),
        failure=_problem(conditions, "ReplicaFailure", "True"),
    )


def _problem(conditions: Mapping[str, Any], kind: str, status: str) -> Problem | None:
    condition = conditions.get(kind)
    if condition is None or condition["status"] != status:
        return None
    return Problem(condition.get("reason", kind), condition.get("message", ""))


def pods_of(observed: Observed, component: Component) -> tuple[KubernetesObject, ...]:
    """Pods of a component that are not going away, oldest first."""
    pods = [
        pod
        for pod in observed.pods
        if pod["metadata"].get("labels", {}).get(names.COMPONENT_LABEL) == component
        and not pod["metadata"].get("deletionTimestamp")
    ]
    return tuple(
        sorted(
            pods,
            key=lambda pod: (
                pod["metadata"].get("creationTimestamp", ""),
                pod["metadata"]["name"],
            ),
        )
    )


def is_ready(pod: KubernetesObject) -> bool:
    """Whether Kubernetes sends traffic to the pod."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
