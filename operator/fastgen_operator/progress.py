"""Tells how far a Deployment's pods are, in words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_operator.observed import Problem, is_placed, is_ready
from fastgen_operator.rollout import RolloutState

DOWNLOAD_CONTAINER: Final = str(Component.DOWNLOAD)
"""Init container of a replica that brings the model into the pod itself."""
IN_PROGRESS: Final = "RolloutInProgress"
DEADLINE: Final = "ProgressDeadlineExceeded"


def progress(component: Component, state: RolloutState) -> str:
    """How far the pods are, such as `replicas: 1 of 2 ready; 1 loads the model`."""
    replicas = state.replicas
    name = "replicas" if component is Component.REPLICA else "balancer"
    if not replicas.is_current:
        return f"{name}: {replicas.wanted} wanted, a change has just been made"
    ready = f"{name}: {min(replicas.ready, replicas.wanted)} of {replicas.wanted} ready"
    if state.earlier:
        ready += f", {sum(map(is_ready, state.latest))} of them in the new form"
    steps = Counter(_step(component, pod) for pod in state.latest if not is_ready(pod))
    told = [f"{count} {step}" for step, count in steps.items()]
    if state.leaving:
        told.append(f"{len(state.leaving)} on the way out, streams end first")
    return "; ".join([ready, *told])


def deadline(
    deployment: KubernetesObject | None,
    state: RolloutState,
    detail: str,
    now: datetime,
) -> Problem | None:
    """Why a Deployment has come no further for too long; None: it has, or it still may.

    A download counts as progress while it runs, and the model may then load for as long again.
    """
    found = state.replicas.deadline
    if found is None or deployment is None:
        return None
    seconds = int(deployment["spec"].get("progressDeadlineSeconds", 600))
    if any(_is_fetching(pod, now - timedelta(seconds=seconds)) for pod in state.latest):
        return None
    return Problem(DEADLINE, f"nothing came further for {seconds} s: {detail}")


def _step(component: Component, pod: KubernetesObject) -> str:
    if not is_placed(pod):
        return "without a node"
    if _running(pod, "initContainerStatuses", DOWNLOAD_CONTAINER):
        return "downloading the model"
    if component is Component.REPLICA and _running(pod, "containerStatuses", None):
        return "loading the model"
    if _running(pod, "containerStatuses", None):
        return "starting"
    return "waiting for image and volumes"


def _is_fetching(pod: KubernetesObject, earliest: datetime) -> bool:
    """Whether a pod's own download runs, or ended after `earliest`."""
    for status in _statuses(pod, "initContainerStatuses"):
        state = status.get("state") or {}
        ended = (state.get("terminated") or {}).get("finishedAt")
        if status["name"] == DOWNLOAD_CONTAINER and (
            state.get("running") is not None or (ended and datetime.fromisoformat(ended) > earliest)
        ):
            return True
    return False


def _running(pod: KubernetesObject, field: str, name: str | None) -> bool:
    return any(
        (status.get("state") or {}).get("running") is not None and name in (None, status["name"])
        for status in _statuses(pod, field)
    )


def _statuses(pod: KubernetesObject, field: str) -> Iterable[Mapping[str, Any]]:
    return pod.get("status", {}).get(field) or ()
