"""Why a FastGenDeployment has this many replicas."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastgen_api.foreign_scaler import foreign_scalers
from fastgen_api.names import Condition
from fastgen_api.scaling import hold_seconds, replicas_wanted, wakes
from fastgen_api.spec import ScalingMode, Spec
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_pods import seconds_since
from fastgen_cli.explain_words import BLOCKERS, RULES, ago, duration, manager_words, plural


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to know."""

    text: str
    """A sentence of ours."""
    quote: str = ""
    """What the system itself says, word for word."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a field last."""

    manager: str
    time: str


def replica_points(facts: Facts, spec: Spec, now: datetime) -> tuple[Point, ...]:
    """The numbers, who chose them by which rule, and what holds them."""
    return tuple(_points(facts, spec, now))


def _points(facts: Facts, spec: Spec, now: datetime) -> Iterator[Point]:
    yield Point(_count(facts, spec))
    yield Point(_mode(spec))
    yield from _sleep(facts, spec)
    yield from _clamped(spec)
    yield Point(_writer(facts, spec, now))
    yield from _decision(facts, spec, now)
    yield from _restraints(facts, spec)
    yield from _slo(facts, spec)


def _count(facts: Facts, spec: Spec) -> str:
    wanted = replicas_wanted(spec)
    existing = int(facts.status.get("replicas", 0))
    ready = int(facts.status.get("readyReplicas", 0))
    verb = "is" if wanted == 1 else "are"
    exist = "exists" if existing == 1 else "exist"
    return f"{plural(wanted, 'replica')} {verb} wanted; {existing} {exist}, {ready} ready."


def _mode(spec: Spec) -> str:
    scaling = spec.scaling
    match scaling.mode:
        case ScalingMode.AUTO if scaling.min_replicas == scaling.max_replicas:
            return (
                f"Scaling is Auto, but minReplicas and maxReplicas are both {scaling.max_replicas}:"
                " nothing is left to choose."
            )
        case ScalingMode.AUTO:
            return (
                "Scaling is Auto: the autoscaler chooses, "
                f"from {scaling.min_replicas} to {scaling.max_replicas}."
            )
        case ScalingMode.RECOMMEND:
            return "Scaling is Recommend: the autoscaler only advises; spec.replicas counts."
        case _:
            return "Scaling is Disabled: spec.replicas alone counts."


def _sleep(facts: Facts, spec: Spec) -> Iterator[Point]:
    """What an idle deployment does, and what becomes of requests that find no replica."""
    if not hold_seconds(spec):
        return
    wanted, hold = replicas_wanted(spec), duration(hold_seconds(spec))
    if not wakes(spec):
        if wanted == 0:
            yield Point(
                f"Requests wait up to {hold} for whoever scales it, since minReplicas is 0: in "
                f"mode {spec.scaling.mode} the autoscaler does not."
            )
    elif wanted == 0:
        yield Point(
            f"It sleeps: a request wakes it and waits for the first replica, up to {hold}, then "
            f"it is answered 503.{_last_start(facts)}"
        )
    elif not facts.status.get("readyReplicas"):
        yield Point(f"Requests wait for the first replica, up to {hold}.{_last_start(facts)}")
    else:
        idle = duration(spec.scaling.scale_to_zero.idle_seconds)
        yield Point(f"After {idle} without a request the last replica goes.")


def _last_start(facts: Facts) -> str:
    seconds = facts.status.get("coldStartSeconds")
    return f" Replicas took {duration(int(seconds))} to start lately." if seconds else ""


def _clamped(spec: Spec) -> Iterator[Point]:
    wanted = replicas_wanted(spec)
    if wanted != spec.replicas:
        bound = "minReplicas" if wanted > spec.replicas else "maxReplicas"
        yield Point(f"spec.replicas is {spec.replicas}; spec.scaling.{bound} makes it {wanted}.")


def _writer(facts: Facts, spec: Spec, now: datetime) -> str:
    writer = replicas_writer(facts.resource)
    if writer is None:
        return f"spec.replicas is {spec.replicas}; the API server does not note who wrote it."
    who = manager_words(writer.manager)
    if writer.time == facts.resource["metadata"].get("creationTimestamp"):
        # The API server does not tell a value that was given from the default.
        return f"spec.replicas is {spec.replicas} as at its creation, by {who}."
    when = ago(seconds_since(writer.time, now))
    return f"spec.replicas was last written by {who}{', ' + when if when else ''}."


def replicas_writer(resource: dict[str, Any]) -> Writer | None:
    """Who wrote `spec.replicas` last, as the API server remembers it; None: nobody did."""
    holders = [
        Writer(entry.get("manager", ""), entry.get("time", ""))
        for entry in resource["metadata"].get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return max(holders, key=lambda each: each.time, default=None)


def _decision(facts: Facts, spec: Spec, now: datetime) -> Iterator[Point]:
    decision = facts.status.get("lastDecision")
    if not decision:
        if spec.scaling.mode is not ScalingMode.DISABLED:
            yield Point("The autoscaler has told of no decision yet.")
        return
    rule, wanted = str(decision.get("rule", "")), decision.get("replicas")
    verb = "advised" if spec.scaling.mode is ScalingMode.RECOMMEND else "asked for"
    when = ago(seconds_since(decision.get("time"), now))
    why = RULES.get(rule, "a rule that this program does not know")
    past = " before its scaling was disabled" if spec.scaling.mode is ScalingMode.DISABLED else ""
    yield Point(
        f"The autoscaler last {verb} {wanted}{past}, {when}: {why} ({rule}).",
        decision.get("message", ""),
    )
    for blocker in decision.get("blockers") or ():
        words = BLOCKERS.get(blocker, "a reason that this program does not know")
        yield Point(f"It was held back: {words} ({blocker}).")
    if spec.scaling.mode is ScalingMode.AUTO and wanted != spec.replicas:
        yield Point(
            f"spec.replicas is {spec.replicas}, not {wanted}: it was written after that decision, "
            "or the autoscaler may not write. Its next decision replaces what a person wrote."
        )


def _restraints(facts: Facts, spec: Spec) -> Iterator[Point]:
    if facts.holds(Condition.SCALING_FROZEN):
        found = facts.condition(Condition.SCALING_FROZEN)
        yield Point("All scaling is frozen by whoever runs the cluster.", found["message"])
    active = facts.condition(Condition.SCALING_ACTIVE)
    by_choice = ("Disabled", "RecommendOnly", "Frozen")
    if active.get("status") == "False" and active["reason"] not in by_choice:
        yield Point(f"The autoscaler is not in charge ({active['reason']}).", active["message"])
    if facts.holds(Condition.FOREIGN_SCALER):
        found = facts.condition(Condition.FOREIGN_SCALER)
        yield Point("Another autoscaler scales behind its back.", found["message"])
    elif active.get("reason") != "ForeignScaler":
        yield from _scalers(facts)


def _scalers(facts: Facts) -> Iterator[Point]:
    """Other autoscalers that no condition tells of: they scale where ours does not."""
    for scaler in foreign_scalers(facts.autoscalers, facts.name):
        yield Point(f"{scaler.words} scales the {scaler.target_kind} {scaler.target_name}.")


def _slo(facts: Facts, spec: Spec) -> Iterator[Point]:
    slo = facts.status.get("slo") or {}
    met = facts.condition(Condition.SLO_MET)
    if "goodPercent" not in slo:
        if met.get("reason") not in (None, "Disabled", "NoTarget"):
            yield Point(f"Whether the SLO is met is not known ({met['reason']}).", met["message"])
        return
    verdict = {"True": "the SLO is met", "False": "the SLO is missed"}.get(
        met.get("status", ""), "too few to judge"
    )
    shares = {
        "time to first token": slo.get("ttftGoodPercent"),
        "time per output token": slo.get("tpotGoodPercent"),
        "token gap": slo.get("gapGoodPercent"),
    }
    parts = [f"{name} {share} %" for name, share in shares.items() if share is not None]
    by_target = f" Kept, target by target: {', '.join(parts)}." if parts else ""
    yield Point(
        f"{slo['goodPercent']} % of {plural(int(slo.get('requests', 0)), 'request')} were good, "
        f"{spec.slo.target_percent} % are asked for: {verdict}.{by_target}"
    )
