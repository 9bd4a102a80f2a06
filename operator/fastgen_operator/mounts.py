"""Which pods wait for volumes or a network longer than usual, and what Kubernetes says of them."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject
from fastgen_operator.observed import Observed, is_placed, live_pods_of

USUAL: Final = timedelta(seconds=15)
"""How long volumes and network may take before somebody asks."""
MOST_PODS: Final = 2
"""About how many is asked at a time: all wait for the same."""
NOT_MADE: Final = frozenset({"ContainerCreating", "PodInitializing"})
REASONS: Final = (
    "FailedMount",
    "FailedMapVolume",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "NetworkNotReady",
)
"""Reasons of events that tell why a container is not made, the most telling ones first."""
SUMMARY: Final = re.compile(r"^Unable to attach or mount volumes")
"""What the kubelet adds after a while: the same, with less in it."""
RANDOM: Final = re.compile(r"\b[0-9a-f]{32,}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Identifiers that differ at each try."""


def pods_to_ask_about(
    observed: Observed, now: datetime
) -> tuple[tuple[KubernetesObject, ...], timedelta | None]:
    """Pods that have a node for longer than usual and no container yet; when to look again.

    No time: nothing is to be looked at that no event would tell.
    """
    waiting = [
        (pod, now - since)
        for component in Component
        for pod in live_pods_of(observed, component)
        if is_placed(pod) and not _is_made(pod) and (since := _placed_since(pod))
    ]
    long = tuple(pod for pod, waited in waiting if waited >= USUAL)
    soon = [USUAL - waited for _, waited in waiting if waited < USUAL]
    return long[:MOST_PODS], min(soon, default=None)


def mount_warning(events: Iterable[KubernetesObject], pod: KubernetesObject) -> str:
    """The words of the most telling event about a pod's volumes; empty: there is none."""
    uid = pod["metadata"].get("uid")
    told = [
        (bool(SUMMARY.match(each.get("note", ""))), REASONS.index(each["reason"]), _age(each), each)
        for each in events
        if each.get("reason") in REASONS and (each.get("regarding") or {}).get("uid") == uid
    ]
    if not told:
        return ""
    note = min(told, key=lambda each: each[:3])[3].get("note", "")
    return RANDOM.sub("…", " ".join(note.split()))


def _age(event: Mapping[str, object]) -> float:
    """Later events sort first."""
    series = event.get("series")
    latest = (
        (series.get("lastObservedTime") if isinstance(series, dict) else None)
        or event.get("deprecatedLastTimestamp")
        or event.get("eventTime")
    )
    return -datetime.fromisoformat(str(latest)).timestamp() if latest else 0.0


def _is_made(pod: KubernetesObject) -> bool:
    status = pod.get("status", {})
    statuses = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    waiting = [(each.get("state") or {}).get("waiting") or {} for each in statuses]
    return bool(statuses) and any(each.get("reason") not in NOT_MADE for each in waiting)


def _placed_since(pod: KubernetesObject) -> datetime | None:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            since = condition.get("lastTransitionTime")
            return datetime.fromisoformat(since) if since else None
    return None
