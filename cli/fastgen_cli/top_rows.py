"""What one line of `fastgen top` says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from fastgen_api.names import Condition
from fastgen_api.scaling import replicas_wanted, wakes
from fastgen_api.spec import SLO, KubernetesObject, Spec, parse
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_pods import seconds_since
from fastgen_cli.explain_readiness import is_ready, is_scaled_to_zero
from fastgen_cli.explain_words import ago
from fastgen_cli.top_sample import Figures


@dataclass(frozen=True, slots=True)
class Row:
    """One FastGenDeployment."""

    namespace: str
    name: str
    is_ready: bool
    ready_replicas: int
    wanted_replicas: int
    good_percent: float | None
    """Of the last minute where it is known, else what the autoscaler saw last."""
    target_percent: float | None
    """None: no target of the SLO is set."""
    figures: Figures
    note: str
    """Why it is not ready, or what the autoscaler decided last."""


def rows(
    resources: Iterable[KubernetesObject],
    figures: Mapping[tuple[str, str], Figures],
    now: datetime,
) -> tuple[Row, ...]:
    """One row each; those that are not ready first."""
    found = [_row(resource, figures, now) for resource in resources]
    return tuple(sorted(found, key=lambda each: (each.is_ready, each.namespace, each.name)))


def _row(
    resource: KubernetesObject, figures: Mapping[tuple[str, str], Figures], now: datetime
) -> Row:
    facts = Facts(resource)
    spec = _spec(resource)
    own = figures.get((facts.namespace, facts.name), Figures())
    return Row(
        namespace=facts.namespace,
        name=facts.name,
        is_ready=is_ready(facts),
        ready_replicas=int(facts.status.get("readyReplicas", 0)),
        wanted_replicas=int((resource.get("spec") or {}).get("replicas", 1))
        if spec is None
        else replicas_wanted(spec),
        good_percent=own.good_percent
        if own.good_percent is not None
        else _number((facts.status.get("slo") or {}).get("goodPercent")),
        target_percent=None if spec is None else _target(spec.slo),
        figures=own,
        note=_note(facts, spec, now),
    )


def _spec(resource: KubernetesObject) -> Spec | None:
    try:
        return parse(resource.get("spec") or {})
    except msgspec.ValidationError:
        return None


def _target(slo: SLO) -> float | None:
    targets = (slo.time_to_first_token, slo.time_per_output_token, slo.token_gap)
    return _number(slo.target_percent) if any(targets) else None


def _note(facts: Facts, spec: Spec | None, now: datetime) -> str:
    if not is_ready(facts):
        ready = facts.condition(Condition.READY)
        if not ready:
            return "no operator has taken it up yet"
        if not facts.is_current:
            return "the operator has not taken up the latest edit"
        return f"{ready['reason']}: {ready.get('message', '')}"
    words = [_zero(facts, spec), _decision(facts, now)]
    return "; ".join(filter(None, words))


def _zero(facts: Facts, spec: Spec | None) -> str:
    if not is_scaled_to_zero(facts):
        return ""
    return "asleep, a request wakes it" if spec is not None and wakes(spec) else "scaled to zero"


def _decision(facts: Facts, now: datetime) -> str:
    decision = facts.status.get("lastDecision")
    if not decision:
        return ""
    when = ago(seconds_since(decision.get("time"), now))
    blockers = decision.get("blockers") or ()
    held = f", held by {', '.join(blockers)}" if blockers else ""
    words = f"{decision.get('replicas')} by {decision.get('rule')} {when}{held}"
    return f"{words}: {decision.get('message', '')}"


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
