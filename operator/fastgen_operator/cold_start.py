"""Measures how long a new replica takes to serve, which the autoscaler plans with."""

import statistics
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from fastgen_api.spec import KubernetesObject

WORTH_TELLING: Final = 1.5
"""A measure is news when it is this many times the last one, or the last one this many times it."""


def cold_start_seconds(
    pods: Iterable[KubernetesObject], longest: int, previous: int | None
) -> int | None:
    """Median time from a node to ready, seconds, of the replica pods; `previous` unless it moved.

    Waiting for a node is left out: a lack of room says nothing about the replica. A pod that lost
    its readiness and found it again looks slow: one that was restarted, or took more than
    `longest` seconds, is left out.
    """
    measured = [
        seconds
        for pod in pods
        if (seconds := _seconds_to_ready(pod)) is not None and seconds <= longest
    ]
    if not measured:
        return previous
    found = max(1, round(statistics.median_low(measured)))
    if previous and previous / WORTH_TELLING <= found <= previous * WORTH_TELLING:
        return previous
    return found


def _seconds_to_ready(pod: KubernetesObject) -> float | None:
    status = pod.get("status", {})
    if any(each.get("restartCount") for each in status.get("containerStatuses") or ()):
        return None
    since = {
        each["type"]: each.get("lastTransitionTime")
        for each in status.get("conditions") or ()
        if each["status"] == "True"
    }
    return _between(since, "PodScheduled", "Ready")


def _between(since: Mapping[str, Any], first: str, second: str) -> float | None:
    if not since.get(first) or not since.get(second):
        return None
    began, ended = (datetime.fromisoformat(since[kind]) for kind in (first, second))
    return max(0.0, (ended - began).total_seconds())
