"""Why a deployment has as many replicas as it has, and who says so."""

from typing import Any

import pytest
from explained import AUTO, CREATED, EARLIER, NOW, decision, facts, resource, why
from rich.console import Console

from fastgen_cli.explain import explain
from fastgen_cli.explain_replicas import replicas_writer
from fastgen_cli.explain_screen import show


def test_a_decision_is_told_with_rule_figures_age_and_what_held_it() -> None:
    found = resource(
        AUTO | {"replicas": 3},
        replicas=3,
        lastDecision=decision("DemandAboveCapacity", 3, "PendingReplicas"),
    )
    text = why(found)
    assert "The autoscaler last asked for 3, 3 min ago: more work is asked for than" in text
    assert "(DemandAboveCapacity)" in text
    assert "“5200 tokens/s are offered”" in text
    assert "are not ready yet and count as supply (PendingReplicas)" in text
    assert "from 1 to 8" in text


def test_the_most_replicas_come_with_the_command_that_allows_more() -> None:
    found = resource(
        AUTO | {"replicas": 8}, lastDecision=decision("DemandAboveCapacity", 8, "MaxReplicas")
    )
    advice = explain(facts(found), NOW).advice
    (command,) = [each.command for each in advice if "more replicas" in each.text]
    assert command == (
        "kubectl -n models patch fgd chat --type=merge "
        '-p \'{"spec":{"scaling":{"maxReplicas":16}}}\''
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (AUTO, "the autoscaler chooses, from 1 to 8"),
        ({"scaling": {"mode": "Recommend", "maxReplicas": 8}}, "the autoscaler only advises"),
        ({"scaling": {"mode": "Disabled"}}, "spec.replicas alone counts"),
        ({}, "minReplicas and maxReplicas are both 1"),
        (AUTO | {"replicas": 12}, "spec.replicas is 12; spec.scaling.maxReplicas makes it 8."),
    ],
)
def test_bounds_and_mode_are_told(spec: dict[str, Any], sentence: str) -> None:
    assert sentence in why(resource(spec))


def sleeper(mode: str = "Auto", minimum: int = 0) -> dict[str, Any]:
    zero = {"idleSeconds": 1200, "holdSeconds": 300} if minimum == 0 else {}
    scaling = {"mode": mode, "minReplicas": minimum, "maxReplicas": 4}
    return {"scaling": scaling | ({"scaleToZero": zero} if zero else {})}


ASLEEP = {"Ready": ("True", "ScaledToZero", "none"), "Available": ("False", "ScaledToZero", "none")}
NONE = {"replicas": 0, "readyReplicas": 0}


@pytest.mark.parametrize(
    ("spec", "conditions", "status", "sentences"),
    [
        (sleeper() | {"replicas": 0}, ASLEEP, NONE | {"coldStartSeconds": 42},
         ("ready: asleep, the next request wakes it",
          "It sleeps: a request wakes it and waits for the first replica, up to 5 min, then it is "
          "answered 503. Replicas took 42 s to start lately.")),
        (sleeper(), {"Ready": ("False", "RolloutInProgress", "0 of 1 ready")}, NONE,
         ("Requests wait for the first replica, up to 5 min.", "not ready")),
        (sleeper(), {}, {}, ("After 20 min without a request the last replica goes.",)),
        (sleeper("Disabled") | {"replicas": 0}, ASLEEP, NONE,
         ("ready: scaled to zero, nothing serves", "Requests wait up to 5 min for whoever scales",
          "in mode Disabled the autoscaler does not")),
        (sleeper("Recommend", 1) | {"replicas": 0}, ASLEEP, NONE,
         ("ready: scaled to zero, nothing serves",)),
    ],
    ids=["asleep", "waking", "awake", "by-hand", "no-hold"],
)  # fmt: skip
def test_sleep_is_told_with_what_ends_it(
    spec: dict[str, Any], conditions: Any, status: dict[str, Any], sentences: tuple[str, ...]
) -> None:
    text = why(resource(spec, conditions, **status))
    for sentence in sentences:
        assert sentence in text
    says_what_waits = any("wait" in sentence for sentence in sentences)
    assert ("Requests wait" in text or "It sleeps" in text) is says_what_waits


def written_by(*writers: tuple[str, str], field: str = "f:replicas") -> dict[str, Any]:
    found = resource(AUTO | {"replicas": 3})
    found["metadata"]["managedFields"] = [
        {"manager": manager, "time": time, "fieldsV1": {"f:spec": {field: {}}}}
        for manager, time in writers
    ]
    return found


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (written_by(("fastgen-balancer", EARLIER)), "by the autoscaler (fastgen-balancer), 3 min"),
        (written_by(("kubectl", EARLIER)), "last written by somebody with kubectl, 3 min ago"),
        (written_by(("kubectl-edit", EARLIER)), "last written by somebody with kubectl edit"),
        (written_by(("kube-controller-manager", EARLIER)), "by a HorizontalPodAutoscaler"),
        (written_by(("helm", CREATED), ("kubectl", EARLIER)), "by somebody with kubectl, 3 min"),
        (written_by(("helm", CREATED)), "spec.replicas is 3 as at its creation, by Helm (helm)"),
        (written_by(("terraform", EARLIER)), "last written by terraform, 3 min ago"),
        (written_by(("kubectl", EARLIER), field="f:slo"), "does not note who wrote"),
    ],
)
def test_who_wrote_the_number_last_is_told(found: dict[str, Any], sentence: str) -> None:
    assert sentence in why(found)


def test_the_writer_is_the_latest_one_of_this_very_field() -> None:
    found = written_by(("helm", CREATED), ("kubectl", EARLIER))
    writer = replicas_writer(found)
    assert writer is not None
    assert writer.manager == "kubectl"


@pytest.mark.parametrize(
    ("conditions", "sentences"),
    [
        (
            {"ScalingFrozen": ("True", "Frozen", "frozen for all")},
            ("All scaling is frozen", "“frozen for all”", "kubectl -n models scale fgd/chat"),
        ),
        (
            {"ScalingActive": ("False", "NotConfigured", "no Prometheus is configured")},
            ("The autoscaler is not in charge (NotConfigured)", "the chart's value prometheus.url"),
        ),
        (
            {"ForeignScaler": ("True", "ForeignScaler", "rival scales chat-replica")},
            ("“rival scales chat-replica”",),
        ),
        (
            {"SLOMet": ("Unknown", "NoTraffic", "no request has ended lately")},
            ("Whether the SLO is met is not known (NoTraffic)",),
        ),
    ],
)
def test_what_keeps_the_autoscaler_from_writing_is_told(
    conditions: dict[str, Any], sentences: tuple[str, ...]
) -> None:
    text = why(resource(AUTO, conditions))
    assert not [sentence for sentence in sentences if sentence not in text], text


@pytest.mark.parametrize(
    ("reason", "ready_replicas", "ready", "is_advised"),
    [
        ("NoSeries", 0, False, False),
        ("LabelMismatch", 0, False, False),
        ("NoSeries", 1, False, True),
        ("NoSeries", 0, True, True),
        ("Unreachable", 0, False, True),
        ("NotConfigured", 0, False, True),
    ],
)
def test_the_first_cause_is_advised_on_and_not_what_follows_from_it(
    reason: str, ready_replicas: int, ready: bool, is_advised: bool
) -> None:
    missing = ("False", "ModelNotFound", "the hub has no such model")
    conditions = {"ScalingActive": ("False", reason, "no series")}
    if not ready:
        conditions |= {"Ready": missing, "ModelReady": missing}
    found = resource(AUTO, conditions, readyReplicas=ready_replicas)
    texts = [each.text for each in explain(facts(found), NOW).advice]
    assert [text for text in texts if "Prometheus" in text] == texts[-1:] * is_advised
    if not ready:
        assert "spec.model.source" in texts[0]


def test_the_slo_is_told_target_by_target() -> None:
    slo = {"goodPercent": "91.2", "ttftGoodPercent": "91.2", "gapGoodPercent": "100.0",
           "requests": 340}  # fmt: skip
    found = resource(AUTO, {"SLOMet": ("False", "Missed", "fewer are good")}, slo=slo)
    text = why(found)
    assert "91.2 % of 340 requests were good, 99 % are asked for: the SLO is missed." in text
    assert "time to first token 91.2 %, token gap 100.0 %" in text
    assert "ready: 1 of 1 replicas serve, but the SLO is missed" in text


def test_a_foreign_autoscaler_is_named_with_the_way_out() -> None:
    autoscaler = {
        "metadata": {"name": "rival"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment",
                                    "name": "chat-replica"}},
    }  # fmt: skip
    text = why(resource(AUTO), autoscalers=(autoscaler,))
    assert "HorizontalPodAutoscaler rival scales the Deployment chat-replica" in text
    assert '{"spec":{"scaling":{"mode":"Disabled"}}}' in text


def test_commands_are_never_broken() -> None:
    found = resource(AUTO, lastDecision=decision("DemandAboveCapacity", 8, "MaxReplicas"))
    console = Console(width=40, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(explain(facts(found), NOW), console)
    lines = console.export_text().splitlines()
    assert [line for line in lines if "patch fgd chat" in line and "maxReplicas" in line]
