"""What stands between a FastGenDeployment and being ready."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from fastgen_api.delivery import ModelPhase
from fastgen_api.names import PAUSED_ANNOTATION, Component, Condition
from fastgen_api.scaling import wakes
from fastgen_api.spec import Spec
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_pods import PodState, seconds_since
from fastgen_cli.explain_replicas import Point
from fastgen_cli.explain_words import ago, gigabytes, plural

TROUBLES: Final = (
    (Condition.STALLED, "True", "It will not become ready by itself"),
    (Condition.MODEL_READY, "False", "The model cannot be served"),
    (Condition.CAPACITY_BLOCKED, "True", "No node takes a pod"),
    (Condition.ROLLOUT_BLOCKED, "True", "The rollout waits"),
    (Condition.ROUTE_BLOCKED, "True", "A route leads nowhere"),
    (Condition.RECONCILING, "True", "It is under way"),
    (Condition.READY, "False", "It is not as its spec says"),
    (Condition.AVAILABLE, "False", "No request can be served"),
)
"""Conditions that tell of something amiss, the most telling first."""
NORMAL: Final = frozenset({"Paused", "ScaledToZero"})
"""Reasons that somebody chose."""


def is_ready(facts: Facts) -> bool:
    """Whether the latest edit is carried out and serves."""
    return facts.is_current and facts.holds(Condition.READY)


def is_paused(facts: Facts) -> bool:
    """Whether the operator is told to leave it alone."""
    annotations = facts.resource["metadata"].get("annotations") or {}
    return str(annotations.get(PAUSED_ANNOTATION, "")).lower() == "true"


def problems(facts: Facts, states: tuple[PodState, ...], now: datetime) -> tuple[Point, ...]:
    """What is amiss; each of the system's own sentences once."""
    found: dict[str, Point] = {}
    for point in _problems(facts, states, now):
        found.setdefault(point.quote or point.text, point)
    return tuple(found.values())


def _problems(facts: Facts, states: tuple[PodState, ...], now: datetime) -> Iterator[Point]:
    if deleted := facts.resource["metadata"].get("deletionTimestamp"):
        yield Point(f"It is being deleted, since {ago(seconds_since(deleted, now))}.")
    if is_paused(facts):
        yield Point(f"It is paused: the annotation {PAUSED_ANNOTATION} keeps the operator away.")
    elif facts.status.get("observedGeneration", 0) <= 0:
        yield Point("No operator has taken it up yet.")
    elif not facts.is_current:
        observed = facts.status["observedGeneration"]
        yield Point(
            f"The operator has not taken up the latest edit: the status tells of generation "
            f"{observed}, the spec is of generation {facts.generation}."
        )
    yield from _model(facts, states)
    for kind, status, text in TROUBLES:
        condition = facts.condition(kind)
        if condition.get("status") == status and condition.get("reason") not in NORMAL:
            yield Point(f"{text} ({condition['reason']}).", condition.get("message", ""))
    if is_ready(facts) and facts.holds(Condition.UPGRADE_AVAILABLE):
        upgrade = facts.condition(Condition.UPGRADE_AVAILABLE)
        yield Point("Its pods can be renewed.", upgrade.get("message", ""))


def _model(facts: Facts, states: tuple[PodState, ...]) -> Iterator[Point]:
    model = facts.status.get("model") or {}
    phase, size = model.get("phase"), model.get("sizeBytes")
    if phase == ModelPhase.DOWNLOADING:
        share = model.get("downloadedPercent")
        of = f" of {gigabytes(int(size))}" if size else ""
        yield Point(f"The model is being downloaded: {0 if share is None else share} %{of}.")
    loading = sum(each.role == Component.REPLICA and each.state == "Starting" for each in states)
    if loading:
        yield Point(f"The model is being loaded by {plural(loading, 'replica')}.")


def is_scaled_to_zero(facts: Facts) -> bool:
    """Whether no replica is wanted, and that is carried out."""
    return is_ready(facts) and facts.condition(Condition.READY).get("reason") == "ScaledToZero"


def summary(
    facts: Facts, spec: Spec | None, states: tuple[PodState, ...], found: tuple[Point, ...]
) -> str:
    """The state in one sentence."""
    if not is_ready(facts):
        first = next((point for point in found if point.quote), None)
        text = (
            first.quote if first else (found[0].text if found else "the operator has yet to tell")
        )
        return f"not ready: {text}"
    if is_scaled_to_zero(facts):
        if spec is not None and wakes(spec):
            return "ready: asleep, the next request wakes it"
        return "ready: scaled to zero, nothing serves"
    serving = sum(each.role == "replica" and each.state == "Ready" for each in states)
    count = serving or int(facts.status.get("readyReplicas", 0))
    missed = facts.condition(Condition.SLO_MET).get("status") == "False"
    return f"ready: {count} of {count} replicas serve" + (
        ", but the SLO is missed" if missed else ""
    )
