"""Explains a FastGenDeployment: why this many replicas, why not ready, what to do."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from fastgen_api import names
from fastgen_api.spec import KubernetesObject, Spec, parse
from fastgen_cli.explain_advice import Advice, advice
from fastgen_cli.explain_facts import Facts, balancer_of, event_time
from fastgen_cli.explain_pods import PodState, pod_states, seconds_since
from fastgen_cli.explain_readiness import is_ready, problems, summary
from fastgen_cli.explain_replicas import Point, replica_points

MOST_EVENTS: Final = 8
PART: Final = r"({0}-(replica|model)|{1}-balancer)(-[a-z0-9]{{6,10}})?(-[a-z0-9]{{5}})?"
"""Names of Deployments, Jobs, ReplicaSets and pods, as Kubernetes makes them."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One Kubernetes event."""

    age_seconds: int | None
    type: str
    """Normal or Warning."""
    about: str
    reason: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that a person is told; the fields are those of `--output json`."""

    name: str
    namespace: str
    ready: bool
    summary: str
    replicas: tuple[Point, ...]
    """Why this many."""
    problems: tuple[Point, ...]
    """What is amiss."""
    pods: tuple[PodState, ...]
    events: tuple[EventLine, ...]
    """The newest last."""
    advice: tuple[Advice, ...]
    unread: tuple[str, ...]
    """What could not be read, and so is missing above."""


def explain(facts: Facts, now: datetime) -> Explanation:
    """Explains what was read; `now` is a time with a zone."""
    spec, unreadable = _spec(facts)
    states = pod_states(facts, now)
    found = (*unreadable, *problems(facts, states, now))
    return Explanation(
        name=facts.name,
        namespace=facts.namespace,
        ready=is_ready(facts),
        summary=summary(facts, spec, states, found),
        replicas=() if spec is None else replica_points(facts, spec, now),
        problems=found,
        pods=states,
        events=tuple(_events(facts, states, {point.quote for point in found}, now)),
        advice=advice(facts, spec, states),
        unread=facts.unread,
    )


def _spec(facts: Facts) -> tuple[Spec | None, tuple[Point, ...]]:
    """The spec, or why this version of the program cannot read it."""
    try:
        return parse(facts.resource.get("spec") or {}), ()
    except msgspec.ValidationError as error:
        text = "The spec was stored in a form that this version of `fastgen` does not read."
        return None, (Point(text, str(error)),)


def _events(
    facts: Facts, states: tuple[PodState, ...], told: set[str], now: datetime
) -> Iterator[EventLine]:
    """What happened lately and is `told` nowhere else in the explanation."""
    name = facts.name
    claims = {claim["metadata"]["name"] for claim in facts.claims}
    # What a pod complained of while it started is over once it serves; a pod with words has spoken.
    balancer = balancer_of(facts.resource)
    over = {each.name for each in states if each.words or each.state in ("Ready", "Terminating")}
    ours = [
        each
        for each in facts.events
        if _is_ours(each["involvedObject"], name, balancer, claims)
        and _is_of_now(each, facts)
        and each["involvedObject"].get("name") not in over
        and each.get("message") not in told
    ]
    for event in sorted(ours, key=event_time)[-MOST_EVENTS:]:
        about = event["involvedObject"]
        yield EventLine(
            age_seconds=seconds_since(event_time(event), now),
            type=event.get("type", "Normal"),
            about="" if about.get("name") == name else str(about.get("name", "")),
            reason=event.get("reason", ""),
            message=" ".join(event.get("message", "").split()),
            count=int((event.get("series") or {}).get("count") or event.get("count") or 1),
        )


def _is_ours(about: dict[str, str], name: str, balancer: str, claims: set[str]) -> bool:
    """Whether an event is about the FastGenDeployment or a part; parts may be gone already."""
    found = about.get("name", "")
    if found == name:
        return about.get("kind") == names.KIND
    part = PART.format(re.escape(name), re.escape(balancer))
    return found in claims or re.fullmatch(part, found) is not None


def _is_of_now(event: KubernetesObject, facts: Facts) -> bool:
    """Whether an event is not about an earlier object of the same name, deleted since.

    A part that is not there any more is told by time: none is older than its FastGenDeployment.
    """
    about = event["involvedObject"]
    objects = {
        (names.KIND, facts.name): facts.resource,
        **{("Pod", each["metadata"]["name"]): each for each in facts.pods},
        **{("PersistentVolumeClaim", each["metadata"]["name"]): each for each in facts.claims},
    }
    found = objects.get((about.get("kind", ""), about.get("name", "")))
    if found is not None:
        uids = (about.get("uid"), found["metadata"].get("uid"))
        return None in uids or uids[0] == uids[1]
    told, made = (each["metadata"].get("creationTimestamp") for each in (event, facts.resource))
    return not told or not made or datetime.fromisoformat(told) >= datetime.fromisoformat(made)
