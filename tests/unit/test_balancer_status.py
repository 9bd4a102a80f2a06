"""What the autoscaler writes into the status, and how rarely."""

from dataclasses import replace

import pytest

from fastgen_api.names import Outcome, Target
from fastgen_api.spec import ScalingMode
from fastgen_balancer.decision import Blocker, Recommendation, Rule
from fastgen_balancer.deployment_status import (
    DISABLED,
    Report,
    ReportMemory,
    Stance,
    next_status,
    note,
    scaling_active,
    slo_met,
    slo_status,
)
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import MetricSignals, Outcomes, Unknown

POLICY = Policy(min_replicas=1, max_replicas=4, target_ratio=0.99)
NOW = 1_700_000_000.0
STEADY = Recommendation(
    2, Rule.STEADY, "1.20 engine-seconds/s are asked for", inputs=(("demand", "1.2"),)
)


def outcomes(good: float, bad: float = 0.0, misses: dict[Target, float] | None = None) -> Outcomes:
    counts = {Outcome.GOOD: good, Outcome.SLOW_TOKENS: bad, Outcome.EXCLUDED: 7.0}
    return Outcomes(counts, 300.0, misses)


def metrics(long: Outcomes | None) -> MetricSignals:
    return MetricSignals((), 0.0, 0.0, 0.0, 0.0, 0.0, None, long)


def report(good: float = 1000.0, bad: float = 0.0, decision: Recommendation = STEADY) -> Report:
    known = metrics(outcomes(good, bad))
    return Report(
        slo_met=slo_met(known, POLICY, "True"),
        scaling_active=scaling_active(ScalingMode.AUTO, None, POLICY, ReportMemory()),
        slo=slo_status(known.long),
        decision=decision,
    )


def written() -> dict:
    status = next_status({}, report(), 3, ReportMemory(), NOW)
    assert status is not None
    return status


def test_the_first_status_tells_all() -> None:
    status = written()
    assert status["slo"] == {"goodPercent": "100.0", "requests": 1000}
    assert status["lastDecision"] == {
        "time": "2023-11-14T22:13:20Z",
        "replicas": 2,
        "rule": "Steady",
        "message": STEADY.message,
        "blockers": [],
        "inputs": {"demand": "1.2"},
    }
    assert [(c["type"], c["status"], c["reason"]) for c in status["conditions"]] == [
        ("SLOMet", "True", "Held"),
        ("ScalingActive", "True", "Scaling"),
    ]
    assert all(c["observedGeneration"] == 3 for c in status["conditions"])


def test_steady_state_writes_nothing() -> None:
    status, memory = written(), ReportMemory(written_at=NOW)
    for minute in range(60):
        decision = replace(STEADY, message=f"{200 + minute} tokens/s", rule=Rule.DEMAND_FITS_FEWER)
        busy = report(1000.0 + minute, decision=decision)
        assert next_status(status, busy, 4, memory, NOW + 60.0 * minute) is None


@pytest.mark.parametrize(("bad", "moved"), [(1.0, True), (0.4, True), (0.0, False)])
def test_goodness_is_written_once_a_minute_when_it_moved(bad: float, moved: bool) -> None:
    status, memory = written(), ReportMemory(written_at=NOW)
    news = report(1000.0 - bad, bad)
    assert next_status(status, news, 3, memory, NOW + 59.0) is None
    new = next_status(status, news, 3, memory, NOW + 60.0)
    assert (new is not None) is moved
    if new:
        assert new["slo"]["goodPercent"] == "99.9"


def test_a_flip_keeps_the_time_of_the_other_condition() -> None:
    status = written()
    new = next_status(status, report(900.0, 100.0), 5, ReportMemory(written_at=NOW), NOW + 90.0)
    assert new is not None
    met, active = new["conditions"]
    assert (met["status"], met["reason"], met["lastTransitionTime"]) == (
        "False", "Missed", "2023-11-14T22:14:50Z",
    )  # fmt: skip
    assert active["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    assert new["lastDecision"] == status["lastDecision"]


def test_a_change_of_replicas_is_told_at_once() -> None:
    up = Recommendation(3, Rule.QUEUE_AT_BALANCER, "8 requests queue")
    news = replace(report(decision=up), scaled=True)
    new = next_status(written(), news, 3, ReportMemory(written_at=NOW), NOW + 2.0)
    assert new is not None
    assert (new["lastDecision"]["replicas"], new["lastDecision"]["rule"]) == (3, "QueueAtBalancer")
    # What follows calmly does not hide why.
    calm = report(decision=replace(STEADY, replicas=3))
    assert next_status(new, calm, 3, ReportMemory(written_at=NOW), NOW + 500.0) is None


def test_a_trouble_is_told_once_it_lasts() -> None:
    status = written()
    capped = replace(STEADY, rule=Rule.SLO_MISSED_SATURATED, blockers=(Blocker.MAX_REPLICAS,))
    memory = note(ReportMemory(written_at=NOW), capped, NOW + 100.0)
    assert memory.stance is Stance.CAPPED
    assert next_status(status, report(decision=capped), 3, memory, NOW + 129.0) is None
    new = next_status(status, report(decision=capped), 3, memory, NOW + 130.0)
    assert new is not None
    assert new["lastDecision"]["blockers"] == ["MaxReplicas"]
    memory = note(memory, capped, NOW + 150.0)
    assert next_status(new, report(decision=capped), 3, memory, NOW + 300.0) is None
    over = note(memory, STEADY, NOW + 310.0)
    assert next_status(new, report(), 3, over, NOW + 310.0) is not None


@pytest.mark.parametrize(
    ("known", "target", "before", "status", "reason"),
    [
        (metrics(outcomes(99, 1)), 0.99, "", "True", "Held"),
        (metrics(outcomes(98, 2)), 0.99, "", "False", "Missed"),
        (metrics(outcomes(15)), 0.99, "", "Unknown", "FewSamples"),
        (metrics(outcomes(15)), 0.99, "Unknown", "Unknown", "FewSamples"),
        (metrics(outcomes(15)), 0.99, "True", "True", "Held"),
        (metrics(outcomes(0)), 0.99, "True", "Unknown", "NoTraffic"),
        (metrics(None), 0.99, "True", "Unknown", "NoOutcomes"),
        (Unknown("Timeout", "late"), 0.99, "True", "Unknown", "Timeout"),
        (metrics(outcomes(98, 2)), None, "", "Unknown", "NoTarget"),
    ],
)
def test_slo_met(
    known: MetricSignals | Unknown, target: float | None, before: str, status: str, reason: str
) -> None:
    met = slo_met(known, replace(POLICY, target_ratio=target), before)
    assert (met.status, met.reason) == (status, reason)


@pytest.mark.parametrize(
    ("mode", "stance", "status", "reason"),
    [
        (ScalingMode.AUTO, Stance.CALM, "True", "Scaling"),
        (ScalingMode.AUTO, Stance.BLIND, "False", "Unreachable"),
        (ScalingMode.RECOMMEND, Stance.CALM, "False", "RecommendOnly"),
    ],
)
def test_scaling_active(mode: ScalingMode, stance: Stance, status: str, reason: str) -> None:
    lost = Unknown("Unreachable", "gone")
    active = scaling_active(mode, lost, POLICY, ReportMemory(stance=stance))
    assert (active.status, active.reason) == (status, reason)


def test_disabled_says_so_once_and_keeps_the_rest() -> None:
    status = written()
    new = next_status(status, DISABLED, 3, ReportMemory(), NOW + 1)
    assert new is not None
    assert {c["reason"] for c in new["conditions"]} == {"Disabled"}
    assert new["lastDecision"] == status["lastDecision"]
    assert next_status(new, DISABLED, 3, ReportMemory(written_at=NOW), NOW + 500) is None


def test_percentages_are_rounded_down() -> None:
    misses = {Target.TTFT: 3.0, Target.TPOT: 0.0}
    assert slo_status(outcomes(9_996, 4, misses)) == {
        "requests": 10_000,
        "goodPercent": "99.9",
        "ttftGoodPercent": "99.9",
        "tpotGoodPercent": "100.0",
    }
    assert slo_status(outcomes(0)) == {"requests": 0}
    assert slo_status(None) is None
