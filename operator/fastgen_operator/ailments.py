"""Why a pod does not serve, in its own words or in Kubernetes'."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from fastgen_api.names import StartupFailure
from fastgen_api.spec import KubernetesObject
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed, Problem, is_ready

UNSCHEDULABLE: Final = "Unschedulable"
CRASHED: Final = "CrashLoopBackOff"
IMAGE_PULL: Final = "ImagePullBackOff"
STARTUP_FAILURES: Final = frozenset(str(reason) for reason in StartupFailure)

WAITING_NORMALLY: Final = frozenset({"ContainerCreating", "PodInitializing", CRASHED})
TERMINATION_MESSAGE: Final = re.compile(r"\A\s*([A-Z][A-Za-z]+): (.+?)\s*\Z", re.DOTALL)
BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
MAX_MESSAGE_LENGTH: Final = 1000


def first_ailment(pods: Iterable[KubernetesObject]) -> Problem | None:
    """The most telling problem of the pods: the model's own, then containers', then scheduling."""
    ailing = [pod for pod in pods if not is_ready(pod)]
    for check in CHECKS:
        for pod in ailing:
            problem = check(pod)
            if problem:
                return Problem(problem.reason, problem.message[:MAX_MESSAGE_LENGTH])
    return None


def is_stuck(deployment: KubernetesObject | None, observed: Observed) -> bool:
    """Whether the pods of a Deployment's latest template fail for a reason of their own.

    Older pods may serve beside them; that no node has room is not the template's fault.
    """
    if deployment is None:
        return False
    template = (deployment["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION)
    latest = [
        pod
        for pod in observed.pods
        if template
        and (pod["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION) == template
    ]
    ailment = first_ailment(latest)
    return (
        ailment is not None
        and ailment.reason != UNSCHEDULABLE
        and not any(is_ready(pod) for pod in latest)
    )


def startup_failure(pod: KubernetesObject) -> Problem | None:
    """What the replica itself said when it could not serve (`names.TERMINATION_MESSAGE_PATH`)."""
    for _, status in _containers(pod):
        match = TERMINATION_MESSAGE.match((_last_end(status) or {}).get("message", ""))
        if match and match[1] in STARTUP_FAILURES:
            return Problem(match[1], " ".join(match[2].split()))
    return None


def unschedulable(pod: KubernetesObject) -> Problem | None:
    """The scheduler's words when no node takes the pod."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Problem(condition.get("reason", UNSCHEDULABLE), condition.get("message", ""))
    return None


def _waiting(pod: KubernetesObject) -> Problem | None:
    """Containers that Kubernetes cannot start: image, configuration, mounts."""
    for name, status in _containers(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if not reason or reason in WAITING_NORMALLY:
            continue
        # The kubelet alternates between trying and backing off: one reason for both, so that
        # nothing flaps.
        is_pull = reason in ("ErrImagePull", IMAGE_PULL)
        words = BACK_OFF.sub("", waiting.get("message", "")) or reason
        image = f" (image {status.get('image', '')})" if is_pull else ""
        return Problem(IMAGE_PULL if is_pull else reason, f"container {name}{image}: {words}")
    return None


def _crashed(pod: KubernetesObject) -> Problem | None:
    """Containers that ended with an error and have not served since."""
    for name, status in _containers(pod):
        end = _last_end(status)
        if status.get("ready") or not end or end.get("exitCode", 0) == 0:
            continue
        why = end.get("reason", "Error")
        message = " ".join(end.get("message", "").split())
        words = f"container {name} exited with code {end['exitCode']} ({why})"
        return Problem(CRASHED, f"{words}: {message}" if message else words)
    return None


def _containers(pod: KubernetesObject) -> Iterator[tuple[str, dict[str, Any]]]:
    status = pod.get("status", {})
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(field) or ():
            yield each["name"], each


def _last_end(status: dict[str, Any]) -> dict[str, Any] | None:
    for state in (status.get("state"), status.get("lastState")):
        if state and state.get("terminated"):
            end: dict[str, Any] = state["terminated"]
            return end
    return None


CHECKS: Final[tuple[Callable[[KubernetesObject], Problem | None], ...]] = (
    startup_failure,
    _waiting,
    _crashed,
    unschedulable,
)
