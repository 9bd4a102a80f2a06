"""What each pod of a FastGenDeployment is at, and what it said last."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_cli.explain_facts import Facts
from fastgen_operator.ailments import first_ailment
from fastgen_operator.observed import is_ready

ORDER: Final = (Component.DOWNLOAD, Component.REPLICA, Component.BALANCER)
MAX_WORDS: Final = 400
"""Characters of a pod's own words: schedulers and tracebacks can be long."""


@dataclass(frozen=True, slots=True)
class FailingContainer:
    """A container whose log says what its pod's status does not."""

    name: str
    ended: bool
    """Whether the log is that of its last run."""


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod, for people."""

    name: str
    role: str
    """What it does: replica, balancer or download."""
    state: str
    """One word, Kubernetes' own where it has one."""
    age_seconds: int | None
    restarts: int
    words: str
    """Its own last words, the scheduler's or the kubelet's; empty: nothing to say."""


def pod_states(facts: Facts, now: datetime) -> tuple[PodState, ...]:
    """All pods: the download's, then replicas, then balancers; those that do not serve first."""
    states = [_state(pod, facts, now) for pod in facts.pods]
    roles = [str(each) for each in ORDER]
    return tuple(
        sorted(
            states,
            key=lambda each: (
                roles.index(each.role) if each.role in roles else len(roles),
                each.state == "Ready",
                each.name,
            ),
        )
    )


def failing_container(pod: KubernetesObject) -> FailingContainer | None:
    """The container to read the log of: one that ended without a message, or is not ready yet."""
    if is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
        return None
    for status in _containers(pod):
        state, last = status.get("state") or {}, status.get("lastState") or {}
        end = state.get("terminated") or last.get("terminated")
        if status.get("ready") or (end and end.get("exitCode") == 0):
            continue
        if end and not end.get("message"):
            # Between two runs the log of the last one is still the current log.
            return FailingContainer(status["name"], ended="terminated" not in state)
        if not end and "running" in state:
            return FailingContainer(status["name"], ended=False)
    return None


def _state(pod: KubernetesObject, facts: Facts, now: datetime) -> PodState:
    metadata = pod["metadata"]
    name = metadata["name"]
    word, words = _word(pod)
    if not words and word not in ("Ready", "Terminating", "Done"):
        words = facts.last_lines.get(name, "") or _warning(facts, name)
    elif word == "CrashLoopBackOff" and facts.last_lines.get(name):
        words = f"{words}: {facts.last_lines[name]}"
    created = metadata.get("creationTimestamp")
    return PodState(
        name=name,
        role=(metadata.get("labels") or {}).get(names.COMPONENT_LABEL, ""),
        state=word,
        age_seconds=seconds_since(created, now),
        restarts=sum(int(each.get("restartCount", 0)) for each in _containers(pod)),
        words=" ".join(words.split())[:MAX_WORDS],
    )


def _word(pod: KubernetesObject) -> tuple[str, str]:
    """State and words, from the pod's own status."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating", "running answers may end first"
    if is_ready(pod):
        return "Ready", ""
    if status.get("phase") == "Succeeded":
        return "Done", ""
    if problem := first_ailment((pod,)):
        return problem.reason, problem.message
    if status.get("phase") == "Failed":
        return "Failed", status.get("message", "") or status.get("reason", "")
    for container in _containers(pod):
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            return str(waiting.get("reason", "Waiting")), waiting.get("message", "")
        if "running" in state and not container.get("ready"):
            return ("NotReady" if container.get("started") else "Starting"), ""
    return str(status.get("phase", "Pending")), ""


def _warning(facts: Facts, name: str) -> str:
    events = facts.events_of("Pod", name)
    return str(events[-1].get("message", "")) if events else ""


def _containers(pod: KubernetesObject) -> list[dict[str, Any]]:
    """Statuses in the order in which the containers run; init containers that are done left out."""
    status = pod.get("status") or {}
    first = [
        each
        for each in status.get("initContainerStatuses") or ()
        if (each.get("state", {}).get("terminated") or {}).get("exitCode") != 0
    ]
    return [*first, *(status.get("containerStatuses") or ())]


def seconds_since(time: str | None, now: datetime) -> int | None:
    """Whole seconds from an RFC 3339 time; None: the time is not known."""
    if not time:
        return None
    return max(0, int((now - datetime.fromisoformat(time)).total_seconds()))
