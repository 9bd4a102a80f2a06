"""When the autoscaler decides and does not write: others scale, or all is frozen."""

from typing import Any

import pytest

from fastgen_api.foreign_scaler import ForeignScaler, foreign_scalers
from fastgen_api.spec import ScalingMode
from fastgen_balancer.decision import Blocker, Recommendation, Rule
from fastgen_balancer.deployment_status import (
    Condition,
    Report,
    ReportMemory,
    next_status,
    scaling_active,
)
from fastgen_balancer.restraint import Restraint, ScalerWatch, restrain, restraint_of
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import Unknown

WISH = Recommendation(3, Rule.QUEUE_AT_BALANCER, "8 requests queue", (Blocker.SCALING_POLICY,))
FROZEN = {"conditions": [{"type": "ScalingFrozen", "status": "True", "reason": "Frozen"}]}
OURS = ForeignScaler("hpa", "FastGenDeployment", "chat")
NOW = 1_700_000_000.0
HELD = Restraint(Blocker.FROZEN, "frozen")


def autoscaler(api_version: str, kind: str, target: str, name: str = "hpa", **more: Any) -> Any:
    reference = {"apiVersion": api_version, "kind": kind, "name": target}
    return {"metadata": {"name": name} | more, "spec": {"scaleTargetRef": reference}}


@pytest.mark.parametrize(
    ("api_version", "kind", "target", "seen"),
    [
        ("fastgen.dev/v1alpha1", "FastGenDeployment", "chat", True),
        ("fastgen.dev/v1", "FastGenDeployment", "chat", True),
        ("apps/v1", "Deployment", "chat-replica", True),
        ("apps/v1", "Deployment", "chat-balancer", True),
        ("fastgen.dev/v1alpha1", "FastGenDeployment", "chat-replica", False),
        ("apps/v1", "Deployment", "chat", False),
        ("apps/v1", "Deployment", "chat-replica-replica", False),
        ("apps/v1", "StatefulSet", "chat-replica", False),
        ("other.dev/v1", "FastGenDeployment", "chat", False),
        ("", "Deployment", "chat-replica", False),
    ],
)
def test_an_autoscaler_is_judged_by_what_it_aims_at(
    api_version: str, kind: str, target: str, seen: bool
) -> None:
    found = foreign_scalers([autoscaler(api_version, kind, target)], "chat")
    assert bool(found) is seen


def test_a_scaled_object_is_named_before_the_autoscaler_that_it_made() -> None:
    owner = [{"kind": "ScaledObject", "name": "chat", "controller": True}]
    made = autoscaler(
        "apps/v1", "Deployment", "chat-replica", "keda-hpa-chat", ownerReferences=owner
    )
    (found,) = foreign_scalers([made], "chat")
    assert found.words == "ScaledObject chat (HorizontalPodAutoscaler keda-hpa-chat)"


def test_an_unfinished_autoscaler_is_no_trouble() -> None:
    assert foreign_scalers([{"metadata": {"name": "hpa"}}], "chat") == ()


@pytest.mark.parametrize(
    ("status", "scalers", "blocker"),
    [
        ({}, (), None),
        (FROZEN, (), Blocker.FROZEN),
        ({"conditions": [{"type": "ScalingFrozen", "status": "False"}]}, (), None),
        ({}, (OURS,), Blocker.FOREIGN_SCALER),
        (FROZEN, (OURS,), Blocker.FOREIGN_SCALER),
        ({}, (ForeignScaler("hpa", "Deployment", "chat-replica"),), Blocker.FOREIGN_SCALER),
        ({}, (ForeignScaler("hpa", "Deployment", "chat-balancer"),), None),
    ],
)
def test_what_restrains_the_autoscaler(
    status: Any, scalers: tuple[ForeignScaler, ...], blocker: Blocker | None
) -> None:
    found = restraint_of(status, scalers, "chat")
    assert (found and found.blocker) is blocker


def test_a_restraint_names_the_scaler() -> None:
    found = restraint_of({}, (OURS,), "chat")
    assert found is not None
    assert "HorizontalPodAutoscaler hpa scales FastGenDeployment chat" in found.message


def test_a_decision_that_is_held_back_says_so() -> None:
    assert restrain(WISH, 2, HELD).blockers == (Blocker.SCALING_POLICY, Blocker.FROZEN)
    assert restrain(WISH, 2, HELD).replicas == 3
    assert restrain(WISH, 3, HELD) == WISH, "nothing is held back where nothing would change"
    assert restrain(WISH, 2, None) == WISH


def test_the_condition_tells_the_restraint_in_auto_only() -> None:
    unknown = Unknown("NoSeries", "nothing is scraped")
    told = {
        mode: scaling_active(mode, unknown, Policy(), ReportMemory(), HELD)
        for mode in (ScalingMode.AUTO, ScalingMode.RECOMMEND)
    }
    assert (told[ScalingMode.AUTO].status, told[ScalingMode.AUTO].reason) == ("False", "Frozen")
    assert told[ScalingMode.RECOMMEND].reason == "RecommendOnly"


def test_a_thaw_takes_the_blocker_out_of_the_last_decision() -> None:
    steady = Condition("True", "Steady", "")
    held = Report(steady, steady, decision=restrain(WISH, 2, HELD))
    frozen = next_status({}, held, 1, ReportMemory(), NOW)
    assert frozen is not None
    assert frozen["lastDecision"]["blockers"] == ["ScalingPolicy", "Frozen"]
    thawed = next_status(frozen, Report(steady, steady, decision=WISH), 1, ReportMemory(), NOW + 60)
    assert thawed is not None
    assert thawed["lastDecision"]["blockers"] == ["ScalingPolicy"]


def test_the_watch_keeps_only_those_of_its_deployment() -> None:
    class Listed(dict):
        def to_dict(self) -> Any:
            return dict(self)

    watch = ScalerWatch("chat")
    mine = Listed(autoscaler("fastgen.dev/v1alpha1", "FastGenDeployment", "chat"))
    other = Listed(autoscaler("fastgen.dev/v1alpha1", "FastGenDeployment", "else"))
    watch.changed({"hpa": mine, "other": other})
    assert watch.scalers == (OURS,)
    watch.changed({"other": other})
    assert watch.scalers == ()
