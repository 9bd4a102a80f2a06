"""What a reconcile sees of a FastGenDeployment's children, and simple questions about it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from fastgen_api import names
from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import Id
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION

UNSCHEDULABLE: Final = "Unschedulable"
ENDED: Final = ("Failed", "Succeeded")
"""Phases of a pod that takes no room any more."""
OVERDUE: Final = timedelta(seconds=30)


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
    served: frozenset[str] = frozenset()
    """Those of monitoring.MONITORING_KINDS whose definitions are installed."""
    balancer: str = ""
    """Name of the balancer in front of the replicas; empty: that of the resource."""

    warnings: Mapping[str, str] = field(default_factory=dict)
    """By the name of a pod whose containers are not made: what Kubernetes says about it."""


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
    if component is Component.REPLICA:
        return observed.children.get(("Deployment", names.replica_name(name)))
    return observed.children.get(("Deployment", names.balancer_name(observed.balancer or name)))


def replicas_of(
    deployment: KubernetesObject | None, pods: Sequence[KubernetesObject] = ()
) -> Replicas:
    """Reads how far a Deployment is; one that does not exist is nowhere.

    pods: those of it that are not going away.
    """
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
        is_current=status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        or _has_changed_nothing(deployment, pods),
        deadline=_problem(conditions, "Progressing", "False"),
        failure=_problem(conditions, "ReplicaFailure", "True"),
    )


def _has_changed_nothing(deployment: KubernetesObject, pods: Sequence[KubernetesObject]) -> bool:
    """Whether an edit that the controller has not seen yet leaves the pods as they are.

    A Deployment's generation grows with its annotations as well, as when somebody who shares the
    balancer comes or goes.
    """
    template = _template_of(deployment)
    if template is None or len(pods) != deployment["spec"].get("replicas", 1):
        return False
    return all(_template_of(pod) == template for pod in pods)


def _problem(conditions: Mapping[str, Any], kind: str, status: str) -> Problem | None:
    condition = conditions.get(kind)
    if condition is None or condition["status"] != status:
        return None
    return Problem(condition.get("reason", kind), condition.get("message", ""))


def pods_of(observed: Observed, component: Component) -> tuple[KubernetesObject, ...]:
    """Pods of a component that are not going away, oldest first."""
    found = _pods(observed, component)
    return tuple(pod for pod in found if not pod["metadata"].get("deletionTimestamp"))


def live_pods_of(observed: Observed, component: Component) -> tuple[KubernetesObject, ...]:
    """Those of `pods_of` that have not ended: an evicted pod stays as a record after its end."""
    found = pods_of(observed, component)
    return tuple(pod for pod in found if pod.get("status", {}).get("phase") not in ENDED)


def leaving_pods_of(
    observed: Observed, component: Component, now: datetime
) -> tuple[KubernetesObject, ...]:
    """Pods of a component that end their streams on a node and will soon be gone.

    One whose time is over, and more, hangs on a node that does not answer.
    """
    overdue = (now - OVERDUE).strftime("%Y-%m-%dT%H:%M:%SZ")
    return tuple(
        pod
        for pod in _pods(observed, component)
        if pod["metadata"].get("deletionTimestamp", "") > overdue and is_placed(pod)
    )


def _pods(observed: Observed, component: Component) -> list[KubernetesObject]:
    pods = [
        pod
        for pod in observed.pods
        if pod["metadata"].get("labels", {}).get(names.COMPONENT_LABEL) == component
    ]
    return sorted(
        pods,
        key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]),
    )


def latest_of(
    deployment: KubernetesObject | None, pods: Iterable[KubernetesObject]
) -> tuple[KubernetesObject, ...]:
    """Those of a Deployment's pods that were made from its latest template.

    All of them when the Deployment does not say: then it was not made by an operator that tells.
    """
    template = _template_of(deployment) if deployment else None
    return tuple(pod for pod in pods if template is None or _template_of(pod) == template)


def _template_of(found: KubernetesObject) -> str | None:
    annotations = found["metadata"].get("annotations") or {}
    mark: str | None = annotations.get(TEMPLATE_ANNOTATION)
    return mark


def is_placed(pod: KubernetesObject) -> bool:
    """Whether the pod has a node."""
    return bool(pod.get("spec", {}).get("nodeName"))


def unscheduled(pod: KubernetesObject) -> Problem | None:
    """The scheduler's reason and words when it has found no node for the pod."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Problem(condition.get("reason", UNSCHEDULABLE), condition.get("message", ""))
    return None


def is_ready(pod: KubernetesObject) -> bool:
    """Whether Kubernetes sends traffic to the pod."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
