"""Why a deployment is not ready, and what to do: judged from objects of the API."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from explained import (
    NOW,
    UNREADY,
    decision,
    event,
    facts,
    pod,
    resource,
    said,
    why,
)
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api import names
from fastgen_balancer.decision import Blocker, Rule
from fastgen_cli import explain_words
from fastgen_cli.explain import Explanation, explain
from fastgen_cli.explain_advice import BY_REASON
from fastgen_cli.explain_facts import Facts

OPERATOR = Path(__file__).resolve().parents[2] / "operator/fastgen_operator"


def test_every_rule_and_every_blocker_has_words() -> None:
    assert set(explain_words.RULES) == set(Rule)
    assert set(explain_words.BLOCKERS) == set(Blocker)


def test_every_reason_of_a_replica_that_cannot_start_has_an_advice() -> None:
    assert set(names.StartupFailure) <= set(BY_REASON)


NOT_AMISS = {
    "AsDeclared", "Paused", "ScaledToZero", "Frozen", "RolloutInProgress", "Downloading",
    "ForeignScaler", "Unknown",
}  # fmt: skip
"""Reasons that somebody chose, that pass, or that have an advice of their own."""


def test_every_reason_that_the_operator_gives_has_an_advice() -> None:
    """Reasons are constants of its modules, in the form `NAME: Final = "CamelCase"`."""
    text = "".join(path.read_text() for path in OPERATOR.glob("*.py"))
    told = set(re.findall(r'^(?:[A-Z_]+(?:: Final)?|    reason) = "([A-Z][A-Za-z]+)"$', text, re.M))
    kinds = {
        "Job",
        "PersistentVolumeClaim",
        "PodMonitor",
        "PrometheusRule",
        "NoSignal",
        "SLOInfeasible",
    }
    assert told - kinds - NOT_AMISS - set(BY_REASON) == set()
    assert {"NameConflict", "PodTemplateForbidden", "ClaimPending"} <= told


def test_the_most_telling_sentence_is_the_summary() -> None:
    conditions = {
        "Ready": ("False", "ImagePullBackOff", "image none:1 cannot be pulled"),
        "Available": ("False", "NoReplicaReady", "no replica takes requests"),
    }
    explanation = explain(facts(resource(conditions=conditions)), NOW)
    assert explanation.summary == "not ready: image none:1 cannot be pulled"


def test_a_download_is_told_with_its_progress() -> None:
    model = {"phase": "Downloading", "sizeBytes": 16_100_000_000, "downloadedPercent": 43}
    text = why(resource(conditions={"Ready": UNREADY}, model=model))
    assert "The model is being downloaded: 43 % of 16.1 GB." in text


def test_a_pause_and_the_way_out_are_told() -> None:
    found = resource()
    found["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: "true"}
    text = why(found)
    assert "It is paused" in text
    assert "kubectl -n models annotate fgd chat fastgen.dev/paused-" in text


@pytest.mark.parametrize(
    ("observed", "sentence"),
    [
        (None, "No operator has taken it up yet."),
        (-1, "No operator has taken it up yet."),
        (1, "tells of generation 1"),
    ],
)
def test_an_operator_that_is_behind_is_told(observed: int | None, sentence: str) -> None:
    found = resource()
    found["status"].pop("observedGeneration")
    if observed is not None:
        found["status"]["observedGeneration"] = observed
    explanation = explain(facts(found), NOW)
    assert not explanation.ready
    assert sentence in said(explanation)
    assert "-l app.kubernetes.io/name=fastgen-operator" in said(explanation)


def test_each_of_the_system_s_sentences_is_quoted_once() -> None:
    words = "container runtime (image none:1): not found"
    conditions = dict.fromkeys(("Ready", "ModelReady"), ("False", "ImagePullBackOff", words))
    conditions["Stalled"] = ("True", "ImagePullBackOff", words)
    explanation = explain(facts(resource(conditions=conditions)), NOW)
    assert [point.quote for point in explanation.problems] == [words]


def test_events_of_parts_that_are_gone_are_told_and_those_of_others_are_not() -> None:
    ours = ("chat-replica-6b8f9c7d5", "chat-replica-6b8f9c7d5-x2v9q", "chat-model-1a2b3c4d-7xq2p")
    others = ("chat-model-replica-6b8f9c7d5-x2v9q", "chat2-replica-6b8f9c7d5", "chat-replica-two-a")
    events = tuple(event(name, ("Pod", name)) for name in (*ours, *others))
    found = explain(facts(events=events), NOW).events
    assert {each.about for each in found} == set(ours)


BEFORE = {"metadata": {"uid": "e", "creationTimestamp": "2025-01-02T01:59:59Z"}}
"""Of an event from before the FastGenDeployment was made."""


@pytest.mark.parametrize(
    ("about", "uid", "more", "is_told"),
    [
        ((names.KIND, "chat"), "now", {}, True),
        ((names.KIND, "chat"), "now", BEFORE, True),
        ((names.KIND, "chat"), "earlier", {}, False),
        ((names.KIND, "chat"), None, {}, True),
        (("PersistentVolumeClaim", "chat-model"), "kept", BEFORE, True),
        (("PersistentVolumeClaim", "chat-model"), "earlier", {}, False),
        (("Job", "chat-model-1a2b3c4d"), "gone", {}, True),
        (("Job", "chat-model-1a2b3c4d"), "gone", BEFORE, False),
    ],
)
def test_events_of_an_earlier_object_of_the_same_name_are_not_told(
    about: tuple[str, str], uid: str | None, more: dict[str, Any], is_told: bool
) -> None:
    found = resource()
    found["metadata"]["uid"] = "now"
    claim = {"metadata": {"name": "chat-model", "uid": "kept"}}
    one = event("words", about, **more)
    one["involvedObject"] |= {} if uid is None else {"uid": uid}
    explanation = explain(facts(found, claims=(claim,), events=(one,)), NOW)
    assert bool(explanation.events) is is_told


def test_events_of_a_shared_balancers_parts_are_told() -> None:
    ours, others = "models-balancer-6b8f9c7d5-x2v9q", "chat-balancer-6b8f9c7d5-x2v9q"
    events = tuple(event(name, ("Pod", name)) for name in (ours, others))
    shared = resource({"balancer": {"name": "models"}})
    assert {each.about for each in explain(facts(shared, events=events), NOW).events} == {ours}


def test_a_route_that_leads_nowhere_is_told_of_what_is_ready() -> None:
    words = "batch in spec.balancer.routes is no FastGenDeployment of this namespace"
    found = resource(conditions={"RouteBlocked": ("True", "RouteTargetMissing", words)})
    explanation = explain(facts(found, pods=(pod(),)), NOW)
    assert explanation.ready
    assert [point.quote for point in explanation.problems] == [words]
    assert "Create the FastGenDeployment" in explanation.advice[0].text
    assert explanation.advice[0].command == "kubectl -n models edit fgd chat"


def test_a_spec_of_another_version_is_no_reason_to_fall_silent() -> None:
    found = resource({"scaling": {"mode": "Predict"}}, {"Ready": UNREADY})
    explanation = explain(facts(found), NOW)
    assert "`$.scaling.mode`" in explanation.problems[0].quote
    assert explanation.replicas == ()


def test_a_newer_form_of_the_pods_is_worth_knowing() -> None:
    upgrade = {"UpgradeAvailable": ("True", "OperatorUpgraded", "the next edit moves it")}
    text = why(resource(conditions=upgrade))
    assert "Worth knowing • Its pods can be renewed. “the next edit moves it”" in text


def test_all_is_well_needs_no_advice() -> None:
    explanation = explain(facts(pods=(pod(),)), NOW)
    assert explanation.ready
    assert explanation.advice == ()
    assert explanation.problems == ()
    assert explanation.summary == "ready: 1 of 1 replicas serve"


def test_json_has_everything() -> None:
    explanation = explain(facts(pods=(pod(),), unread=("events: forbidden",)), NOW)
    found = json.loads(msgspec.json.encode(explanation))
    assert set(found) == set(Explanation.__slots__)
    assert found["unread"] == ["events: forbidden"]


def test_what_could_not_be_read_is_told() -> None:
    text = why(resource(), unread=("pods: pods is forbidden",))
    assert "Not seen" in text
    assert "pods is forbidden" in text


NAMES = [name for name, value in vars(names.Condition).items() if isinstance(value, str)]


@given(
    dropped=st.sets(st.sampled_from(["status", "spec", "replicas", "readyReplicas", "conditions",
                                     "managedFields", "annotations", "generation",
                                     "creationTimestamp"])),
    kinds=st.dictionaries(
        st.sampled_from([getattr(names.Condition, name) for name in NAMES if name.isupper()]),
        st.tuples(st.sampled_from(["True", "False", "Unknown"]), st.just("Why"), st.text()),
    ),
    mode=st.sampled_from(["Auto", "Recommend", "Disabled"]),
    decided=st.dictionaries(st.sampled_from(["time", "rule", "replicas"]), st.none()),
)  # fmt: skip
def test_whatever_is_missing_an_explanation_is_given(
    dropped: set[str], kinds: dict[str, Any], mode: str, decided: dict[str, Any]
) -> None:
    found = resource({"scaling": {"mode": mode, "maxReplicas": 4}}, kinds)
    found["status"]["lastDecision"] = decision("Steady", 2) | decided
    for part in (found, found["metadata"], found["status"]):
        for name in dropped:
            part.pop(name, None)
    pods = (pod(), pod("chat-replica-b", phase="Pending"), pod("chat-replica-c", phase="Failed"))
    explanation = explain(Facts(found, pods=pods), NOW)
    assert explanation.summary
    assert said(explanation)
    if not explanation.ready:
        assert explanation.advice
