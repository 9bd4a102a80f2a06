"""What a namespace looks like to who asks why a test of an operator failed.

It shows no object in whole: Secrets and environments stay where they are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

Section = tuple[str, str]
"""Title and text."""
NUM_EVENTS: Final = 40
NUM_OPERATOR_LINES: Final = 60
NUM_POD_LINES: Final = 30
MOST_PODS: Final = 6
"""Whose logs are shown: where many are not ready, they are so for the same reason."""
PATIENCE: Final = "--request-timeout=10s"
"""A cluster that does not answer may be why the test failed."""

_STATE_WORDS: Final = ("startedAt", "finishedAt", "reason", "exitCode", "message")


class Operated(Protocol):
    """As much of an OperatorProcess as is asked."""

    @property
    def namespace(self) -> str: ...
    @property
    def log(self) -> Path: ...
    def kubectl(self, *words: str) -> str: ...


def sections(operator: Operated) -> list[Section]:
    """FastGenDeployments, pods, events and logs; what cannot be had says why."""

    def items(kind: str) -> list[Any]:
        found: list[Any] = loads(operator.kubectl("get", kind, "-o=json", PATIENCE))["items"]
        return found

    parts: dict[str, Callable[[], str]] = {
        "FastGenDeployments": lambda: resources_text(items("fgd")),
        "pods": lambda: "\n".join(map(pod_text, items("pods"))),
        "events": lambda: events_text(items("events")),
        "operator's log": lambda: last_lines(operator.log.read_text(), NUM_OPERATOR_LINES),
        "logs of pods that are not ready": lambda: _logs(operator, items("pods")),
    }
    return [(f"{name} of {operator.namespace}", _told(part)) for name, part in parts.items()]


@contextmanager
def noted(operator: Operated) -> Iterator[None]:
    """Notes at a failure what there is to see, for whoever reads of it when all is gone."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        for title, text in sections(operator):
            error.add_note(f"--- {title} ---\n{text}")
        raise


def resources_text(resources: Iterable[Any]) -> str:
    """Conditions of FastGenDeployments, and whether they are of the latest generation."""
    lines = []
    for each in resources:
        metadata, status = each["metadata"], each.get("status", {})
        seen = status.get("observedGeneration")
        lines.append(f"{metadata['name']}: generation {metadata['generation']}, observed {seen}")
        lines += [
            f"  {told['type']}={told['status']} {told.get('reason')} "
            f"since {told.get('lastTransitionTime')}: {told.get('message')}"
            for told in status.get("conditions", ())
        ]
    return "\n".join(lines)


def pod_text(pod: Any) -> str:
    """A pod's phase and conditions, and the state of each of its containers."""
    metadata, status = pod["metadata"], pod.get("status", {})
    leaving = metadata.get("deletionTimestamp")
    amiss = [
        f"  {told['type']}={told['status']} {told.get('reason', '')} {told.get('message', '')}"
        for told in status.get("conditions", ())
        if told["status"] != "True"
    ]
    head = f"{metadata['name']}: {status.get('phase')} on {pod['spec'].get('nodeName')}"
    head += f" since {metadata['creationTimestamp']}" + (f", ends {leaving}" if leaving else "")
    return "\n".join([head, *amiss, *map(_container_text, _containers(pod))])


def events_text(events: Iterable[Any]) -> str:
    """The latest of them, the last one at the end."""
    ordered = sorted(events, key=_time_of)
    return "\n".join(
        f"{_time_of(each)} {each['type']} {each['reason']} "
        f"{each['involvedObject']['kind']}/{each['involvedObject'].get('name')}: "
        f"{each.get('message')} (x{each.get('count') or 1})"
        for each in ordered[-NUM_EVENTS:]
    )


def last_lines(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])


def _containers(pod: Any) -> list[Any]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _container_text(container: Any) -> str:
    states = [
        " ".join([when, kind, *(str(told[word]) for word in _STATE_WORDS if word in told)])
        for when, field in (("is", "state"), ("was", "lastState"))
        for kind, told in container.get(field, {}).items()
    ]
    head = (
        f"  {container['name']}: ready={container['ready']}, {container['restartCount']} restarts"
    )
    return "; ".join([head, *states])


def _time_of(event: Any) -> str:
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _logs(operator: Operated, pods: Iterable[Any]) -> str:
    """Of the containers that are not ready, and of those that ran in their place before."""
    unready = [
        [(pod["metadata"]["name"], each) for each in _containers(pod) if not each["ready"]]
        for pod in pods
        if pod.get("status", {}).get("phase") != "Succeeded"
    ]
    return "\n".join(
        _log(operator, pod, f"-c={container['name']}", *flags)
        for group in list(filter(None, unready))[:MOST_PODS]
        for pod, container in group
        for flags in ((), ("--previous",))[: 2 if container["restartCount"] else 1]
    )


def _log(operator: Operated, *words: str) -> str:
    tail = (f"--tail={NUM_POD_LINES}", PATIENCE)
    return f"{' '.join(words)}:\n{_told(lambda: operator.kubectl('logs', *words, *tail))}"


def _told(part: Callable[[], str]) -> str:
    """Whatever goes wrong here must not take the place of what a test has to tell."""
    try:
        return part().rstrip() or "nothing"
    except (Exception, pytest.fail.Exception) as error:  # the latter: the test's time is over
        return f"not known: {type(error).__name__}: {error}"
