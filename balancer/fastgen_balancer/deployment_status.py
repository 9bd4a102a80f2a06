"""The autoscaler's part of a FastGenDeployment's status, and when it is worth a write."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import floor
from typing import Any, Final

from fastgen_api import names
from fastgen_api.names import Target
from fastgen_api.spec import KubernetesObject, ScalingMode
from fastgen_balancer.decision import Blocker, Recommendation, Rule
from fastgen_balancer.restraint import Restraint
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import MetricSignals, Outcomes, Unknown

QUIET_SECONDS: Final = 60.0
"""Between two writes that tell of no change of replicas."""
LASTING_SECONDS: Final = 30.0
"""A trouble is told once it has lasted that long."""
WORTH_PERCENT: Final = 0.1
"""A smaller move of goodPercent is not worth a write."""
HOLDS: Final = frozenset({Blocker.FOREIGN_SCALER, Blocker.FROZEN})
"""Blockers for which a decision is not carried out at all."""
UNTRUE: Final = frozenset({"StaleMetrics", "NotANumber"})
"""What is missing when outcomes of requests are no news, either."""
OWN_CONDITIONS: Final = (names.Condition.SLO_MET, names.Condition.SCALING_ACTIVE)


CAPS: Final = frozenset(
    {Blocker.MAX_REPLICAS, Blocker.STUCK_REPLICAS, Blocker.CAPACITY_BLOCKED, Blocker.FLAPPING}
)
"""Blockers that somebody would do something about."""


class Stance(StrEnum):
    """What a reader would do something about, or not."""

    CALM = "calm"
    CAPPED = "capped"
    BLIND = "blind"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its times; the message holds no number that always moves."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What the status should say now."""

    slo_met: Condition
    scaling_active: Condition
    slo: KubernetesObject | None = None
    decision: Recommendation | None = None
    scaled: bool = False
    """The decision has just been carried out."""


@dataclass(frozen=True, slots=True)
class ReportMemory:
    """What one report leaves for the next."""

    written_at: float | None = None
    stance: Stance = Stance.CALM
    stance_since: float = 0.0


def stance_of(rule: str, blockers: tuple[str, ...]) -> Stance:
    """The class of a decision: a change from one to another is worth telling."""
    if rule == Rule.NO_SIGNAL:
        return Stance.BLIND
    if rule == Rule.SLO_INFEASIBLE:
        return Stance.INFEASIBLE
    if CAPS.intersection(blockers):
        return Stance.CAPPED
    return Stance.CALM


def note(memory: ReportMemory, decision: Recommendation, now: float) -> ReportMemory:
    """Keeps track of how long the decisions have been of one class."""
    stance = stance_of(decision.rule, decision.blockers)
    if stance is memory.stance:
        return memory
    return replace(memory, stance=stance, stance_since=now)


def lasts(memory: ReportMemory, now: float) -> bool:
    """Whether a trouble is one that a reader should hear of."""
    return now - memory.stance_since >= LASTING_SECONDS


def slo_met(
    metrics: MetricSignals | Unknown, policy: Policy, before: str, lack: Unknown | None = None
) -> Condition:
    """Whether the long window holds the SLO; `before` is the condition's present status."""
    if policy.target_ratio is None:
        return Condition("Unknown", "NoTarget", "spec.slo sets no target")
    if isinstance(metrics, Unknown):
        return Condition("Unknown", metrics.reason, metrics.message)
    if lack is not None and lack.reason in UNTRUE:
        return Condition("Unknown", lack.reason, lack.message)
    if metrics.long is None:
        return Condition("Unknown", "NoOutcomes", "Prometheus has no outcomes of requests")
    total = metrics.long.total
    if total == 0:
        return Condition("Unknown", "NoTraffic", "no request has ended lately")
    # Half the samples keep a verdict: traffic about the limit must not make it come and go.
    enough = policy.min_samples / (2 if before in ("True", "False") else 1)
    if total < enough:
        return Condition("Unknown", "FewSamples", "too few requests have ended lately to judge")
    share = f"{policy.target_ratio * 100:g} %"
    if metrics.long.good / total >= policy.target_ratio:
        return Condition("True", "Held", f"at least {share} of the requests are good")
    return Condition("False", "Missed", f"fewer than {share} of the requests are good")


def scaling_active(
    mode: ScalingMode,
    lack: Unknown | None,
    policy: Policy,
    memory: ReportMemory,
    restraint: Restraint | None = None,
) -> Condition:
    """Whether the autoscaler chooses the number of replicas, and sees enough for it."""
    if mode is ScalingMode.RECOMMEND:
        text = "spec.scaling.mode is Recommend: status.lastDecision tells what Auto would do"
        return Condition("False", "RecommendOnly", text)
    if restraint is not None:
        return Condition("False", restraint.blocker.value, restraint.message)
    if memory.stance is Stance.BLIND and lack is not None:
        return Condition("False", lack.reason, lack.message)
    goal = "demand" if policy.target_ratio is None else "the SLO and demand"
    text = f"{policy.min_replicas} to {policy.max_replicas} replicas by {goal}"
    return Condition("True", "Scaling", text)


DISABLED: Final = Report(
    slo_met=Condition("Unknown", "Disabled", "spec.scaling.mode is Disabled"),
    scaling_active=Condition("False", "Disabled", "spec.scaling.mode is Disabled"),
)


def slo_status(outcomes: Outcomes | None) -> KubernetesObject | None:
    """`status.slo`: shares in percent, rounded down so that 100.0 means all."""
    if outcomes is None:
        return None
    total = outcomes.total
    found: KubernetesObject = {"requests": round(total)}
    if total <= 0:
        return found
    found["goodPercent"] = _percent(outcomes.good / total)
    fields = {
        Target.TTFT: "ttftGoodPercent",
        Target.TPOT: "tpotGoodPercent",
        Target.GAP: "gapGoodPercent",
    }
    for target, name in fields.items():
        if outcomes.misses is not None and target in outcomes.misses:
            found[name] = _percent(1 - min(1.0, outcomes.misses[target] / total))
    return found


def next_status(
    status: Mapping[str, Any], report: Report, generation: int, memory: ReportMemory, now: float
) -> KubernetesObject | None:
    """Our whole part of the status if it is to be written now, else None."""
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    decision, decided = _decision(status.get("lastDecision"), report.decision, memory, now)
    flipped = [
        name for name, wanted in _conditions(report).items() if _differs(conditions, name, wanted)
    ]
    slo = report.slo if report.slo is not None else status.get("slo")
    moved = _moved(status.get("slo"), slo) or names.Condition.SLO_MET in flipped
    if not (decided or flipped or moved):
        return None
    written_at = memory.written_at
    if not report.scaled and written_at is not None and now - written_at < QUIET_SECONDS:
        return None
    new: KubernetesObject = {
        "conditions": [
            _condition(conditions.get(name), name, wanted, generation, now)
            for name, wanted in _conditions(report).items()
        ]
    }
    if slo:
        new["slo"] = slo
    if decision:
        new["lastDecision"] = decision
    return new


def _decision(
    old: Mapping[str, Any] | None, wanted: Recommendation | None, memory: ReportMemory, now: float
) -> tuple[KubernetesObject, bool]:
    """The decision that the status should show, and whether it is another one."""
    before = dict(old or {})
    if wanted is None:
        return before, False
    stance = stance_of(before.get("rule", ""), tuple(before.get("blockers") or ()))
    told = memory.stance is Stance.CALM or lasts(memory, now)
    held = HOLDS.intersection(before.get("blockers") or ()) != HOLDS.intersection(wanted.blockers)
    moved = before.get("replicas") != wanted.replicas
    other = moved or held or (memory.stance is not stance and told)
    if before and not other:
        return before, False
    new = {
        "time": timestamp(now),
        "replicas": wanted.replicas,
        "rule": wanted.rule.value,
        "message": wanted.message,
        "blockers": [blocker.value for blocker in wanted.blockers],
        "inputs": dict(wanted.inputs),
    }
    return new, True


def _conditions(report: Report) -> dict[str, Condition]:
    return dict(zip(OWN_CONDITIONS, (report.slo_met, report.scaling_active), strict=True))


def _differs(conditions: Mapping[Any, Mapping[str, Any]], name: str, wanted: Condition) -> bool:
    found = conditions.get(name, {})
    return any(found.get(key) != getattr(wanted, key) for key in Condition.__slots__)


def _condition(
    old: Mapping[str, Any] | None, name: str, wanted: Condition, generation: int, now: float
) -> KubernetesObject:
    same = old is not None and old.get("status") == wanted.status
    return {
        "type": name,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old and same else timestamp(now),
    }


def _moved(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> bool:
    before, after = ((slo or {}).get("goodPercent") for slo in (old, new))
    if before is None or after is None:
        return before is not after
    return abs(float(before) - float(after)) >= WORTH_PERCENT - 1e-9


def _percent(ratio: float) -> str:
    return f"{floor(ratio * 1000 + 1e-9) / 10:.1f}"


def timestamp(now: float) -> str:
    """Seconds since the epoch as the API's Time."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
