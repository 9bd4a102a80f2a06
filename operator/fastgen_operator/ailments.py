"""Why a pod does not serve, in its own words or in Kubernetes', and what to do about it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from fastgen_api.logs import last_line
from fastgen_api.names import StartupFailure
from fastgen_api.spec import KubernetesObject
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import UNSCHEDULABLE, Observed, Problem, is_ready, unscheduled
from fastgen_operator.remedies import (
    configuration_remedy,
    crash_remedy,
    image_remedy,
    memory_limit,
    memory_remedy,
    mount_remedy,
    placement_remedy,
    room_remedy,
    sentences,
)
from fastgen_operator.rollout_room import is_lack_of_room, scheduler_words

CRASHED: Final = "CrashLoopBackOff"
IMAGE_PULL: Final = "ImagePullBackOff"
OUT_OF_MEMORY: Final = "OOMKilled"
NOT_MOUNTED: Final = "FailedMount"
STARTUP_FAILURES: Final = frozenset(str(reason) for reason in StartupFailure)

AILMENTS: Final = STARTUP_FAILURES | {
    CRASHED,
    IMAGE_PULL,
    OUT_OF_MEMORY,
    NOT_MOUNTED,
    UNSCHEDULABLE,
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "FailedCreate",
    "ClaimNotFound",
    "ClaimPending",
    "DownloadRetrying",
}
"""Reasons for which somebody may have to do something."""

WAITING_NORMALLY: Final = frozenset({"ContainerCreating", "PodInitializing", CRASHED})
PULL_FAILURES: Final = frozenset(
    {"ErrImagePull", IMAGE_PULL, "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
TERMINATION_MESSAGE: Final = re.compile(r"\A\s*([A-Z][A-Za-z]+): (.+?)\s*\Z", re.DOTALL)
BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
PULL_PREFIXES: Final = re.compile(
    r'rpc error: code = \w+ desc = |failed to pull and unpack image "[^"]*": '
    r'|failed to resolve reference "[^"]*": |failed to (?:pull|resolve) image: '
)
"""What says once more that an image could not be pulled."""
MAX_MESSAGE_LENGTH: Final = 1000
MAX_LINE_LENGTH: Final = 400

Check = Callable[[KubernetesObject], Problem | None]


def first_ailment(
    pods: Iterable[KubernetesObject], warnings: Mapping[str, str] | None = None
) -> Problem | None:
    """The most telling problem of the pods: the model's own, then containers', then scheduling.

    `warnings` has, by the name of a pod whose containers are not made, Kubernetes' words about it.
    """
    ailing = [pod for pod in pods if not is_ready(pod)]
    unmounted = partial(_unmounted, warnings=warnings or {})
    checks: tuple[Check, ...] = (startup_failure, _waiting, _crashed, unmounted, unschedulable)
    for check in checks:
        for pod in ailing:
            problem = check(pod)
            if problem:
                return Problem(problem.reason, problem.message[:MAX_MESSAGE_LENGTH])
    return None


def is_stuck(deployment: KubernetesObject | None, observed: Observed) -> bool:
    """Whether the pods of a Deployment's latest template fail for a reason of their own.

    Older pods may serve beside them; that no node has room is not the template's fault. A template
    of which all pods once served is sound, whatever a node or a registry has done to them since.
    """
    if deployment is None or _has_completed(deployment):
        return False
    template = (deployment["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION)
    latest = [
        pod
        for pod in observed.pods
        if template
        and (pod["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION) == template
    ]
    ailment = first_ailment(latest, observed.warnings)
    return (
        ailment is not None
        and ailment.reason != UNSCHEDULABLE
        and not any(is_ready(pod) for pod in latest)
    )


def _has_completed(deployment: KubernetesObject) -> bool:
    """Whether the rollout of the latest template came to its end, by its controller."""
    status = deployment.get("status") or {}
    is_current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return is_current and any(
        each["type"] == "Progressing" and each.get("reason") == "NewReplicaSetAvailable"
        for each in status.get("conditions") or ()
    )


def startup_failure(pod: KubernetesObject) -> Problem | None:
    """What the replica itself said when it could not serve (`names.TERMINATION_MESSAGE_PATH`)."""
    for name, status in _containers(pod):
        end = _last_end(status) or {}
        match = TERMINATION_MESSAGE.match(end.get("message", ""))
        if match and match[1] in STARTUP_FAILURES:
            words = " ".join(match[2].split())
            limit = memory_limit(pod, name) if end.get("reason") == OUT_OF_MEMORY else ""
            return Problem(match[1], f"{words} (its limit is {limit})" if limit else words)
    return None


def unschedulable(pod: KubernetesObject) -> Problem | None:
    """The scheduler's words when no node takes the pod, and what to do."""
    found = unscheduled(pod)
    if found is None:
        return None
    words = scheduler_words(found.message)
    if is_lack_of_room(pod):
        return Problem(found.reason, sentences(words, room_remedy(pod)))
    return Problem(found.reason, sentences(words, placement_remedy(pod, words)))


def _waiting(pod: KubernetesObject) -> Problem | None:
    """Containers that Kubernetes cannot start: image, configuration."""
    for name, status in _containers(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if not reason or reason in WAITING_NORMALLY:
            continue
        if reason in PULL_FAILURES:
            # The kubelet alternates between trying and backing off: one reason for both, so that
            # nothing flaps.
            words = PULL_PREFIXES.sub("", BACK_OFF.sub("", waiting.get("message", ""))) or reason
            told = f"container {name}: image {status.get('image', '')} cannot be pulled: {words}"
            return Problem(IMAGE_PULL, sentences(told, image_remedy(pod, name)))
        words = waiting.get("message", "") or reason
        remedy = configuration_remedy(pod, name, words)
        return Problem(reason, sentences(f"container {name} cannot be made: {words}", remedy))
    return None


def _crashed(pod: KubernetesObject) -> Problem | None:
    """Containers that ended with an error and have not served since."""
    for name, status in _containers(pod):
        end = _last_end(status)
        if status.get("ready") or not end or end.get("exitCode", 0) == 0:
            continue
        why = end.get("reason", "Error")
        if why == OUT_OF_MEMORY:
            limit = memory_limit(pod, name)
            told = f"its limit ({limit})" if limit else "its node had"
            words = f"container {name} was killed because it took more memory than {told}"
            return Problem(OUT_OF_MEMORY, sentences(words, memory_remedy(pod, name)))
        words = f"container {name} exited with code {end['exitCode']} ({why})"
        line = last_line(end.get("message", ""))[:MAX_LINE_LENGTH]
        told = f"{words}; its last words: {line}" if line else words
        return Problem(CRASHED, sentences(told, crash_remedy(pod, name)))
    return None


def _unmounted(pod: KubernetesObject, warnings: Mapping[str, str]) -> Problem | None:
    """Pods whose containers wait for a volume or a network."""
    words = warnings.get(pod["metadata"]["name"])
    return Problem(NOT_MOUNTED, sentences(words, mount_remedy(pod, words))) if words else None


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
