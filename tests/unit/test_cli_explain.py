"""Why this many replicas, why not ready, what to do: judged from objects of the API."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from explained import CREATED, EARLIER, NOW, container, event, facts, pod, resource
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fastgen_api import names
from fastgen_balancer.decision import Blocker, Rule
from fastgen_cli import explain_words
from fastgen_cli.explain import Explanation, explain
from fastgen_cli.explain_advice import BY_REASON
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_replicas import replicas_writer
from fastgen_cli.explain_screen import show

OPERATOR = Path(__file__).resolve().parents[2] / "operator/fastgen_operator"
AUTO = {"scaling": {"mode": "Auto", "minReplicas": 1, "maxReplicas": 8}}


def said(explanation: Explanation) -> str:
    """Everything that a person reads, in one line."""
    console = Console(width=500, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(explanation, console)
    return " ".join(console.export_text().split())


def why(found: dict[str, Any], **more: Any) -> str:
    return said(explain(facts(found, **more), NOW))


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


def decision(rule: str, replicas: int = 3, *blockers: str) -> dict[str, Any]:
    return {
        "time": EARLIER, "rule": rule, "replicas": replicas, "blockers": list(blockers),
        "message": "5200 tokens/s are offered",
    }  # fmt: skip


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


UNREADY = ("False", "RolloutInProgress", "replicas: 0 of 1 available")


def test_a_pod_is_told_with_the_scheduler_s_words() -> None:
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    pending = pod(
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                     "message": words}],
    )  # fmt: skip
    found = resource(
        conditions={"Ready": UNREADY, "CapacityBlocked": ("True", "Unschedulable", words)}
    )
    explanation = explain(facts(found, pods=(pending,)), NOW)
    (state,) = explanation.pods
    assert (state.state, state.age_seconds) == ("Unschedulable", 180)
    assert state.words.startswith(words)
    assert not explanation.ready
    assert words in explanation.summary
    assert explanation.advice[0].command == "kubectl -n models describe pod chat-replica-a"


def test_a_crashed_replica_is_told_in_its_own_words() -> None:
    end = {
        "exitCode": 1,
        "reason": "Error",
        "message": "OutOfMemory: 9 GiB are needed, 2 are there",
    }
    crashed = pod(
        phase="Running",
        containerStatuses=[
            container(restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}},
                      lastState={"terminated": end}),
        ],
    )  # fmt: skip
    explanation = explain(facts(resource(conditions={"Ready": UNREADY}), pods=(crashed,)), NOW)
    (state,) = explanation.pods
    assert state.state == "OutOfMemory"
    assert "9 GiB are needed" in state.words
    assert state.restarts == 4
    assert "Raise spec.resources" in said(explanation)


def test_a_container_that_left_no_message_speaks_by_its_log() -> None:
    crashed = pod(
        phase="Running",
        containerStatuses=[
            container(state={"waiting": {"reason": "CrashLoopBackOff"}},
                      lastState={"terminated": {"exitCode": 139, "reason": "Error"}}),
        ],
    )  # fmt: skip
    lines = {"chat-replica-a": "Segmentation fault"}
    (state,) = explain(facts(pods=(crashed,), last_lines=lines), NOW).pods
    assert state.state == "CrashLoopBackOff"
    assert state.words.endswith("Segmentation fault")


def test_a_pod_that_starts_shows_its_log_or_the_kubelet_s_warning() -> None:
    starting = pod(
        phase="Running", containerStatuses=[container(started=False, state={"running": {}})]
    )
    lines = {"chat-replica-a": "loading tensors"}
    (state,) = explain(facts(pods=(starting,), last_lines=lines), NOW).pods
    assert (state.state, state.words) == ("Starting", "loading tensors")
    warning = event("Startup probe failed: 503", ("Pod", "chat-replica-a"), type="Warning")
    (state,) = explain(facts(pods=(starting,), events=(warning,)), NOW).pods
    assert state.words == "Startup probe failed: 503"


def test_pods_that_do_not_serve_come_first_and_balancers_last() -> None:
    pods = (
        pod("chat-balancer-x", "balancer"),
        pod("chat-replica-a"),
        pod("chat-replica-b", phase="Pending"),
        pod("chat-model-1", "download", phase="Succeeded"),
    )
    found = [each.name for each in explain(facts(pods=pods), NOW).pods]
    assert found == ["chat-model-1", "chat-replica-b", "chat-replica-a", "chat-balancer-x"]


def test_what_pods_say_alike_is_read_once_and_no_event_repeats_it() -> None:
    end = {"exitCode": 1, "reason": "Error", "message": "ModelInvalid: no tensors"}
    crashed = {"phase": "Running", "containerStatuses": [container(state={"terminated": end})]}
    pods = tuple(pod(f"chat-replica-{letter}", **crashed) for letter in "abc")
    failed = ("False", "ModelInvalid", "no tensors here")
    events = (
        event("no tensors here"),
        event("made the replicas"),
        event("Back-off restarting", ("Pod", "chat-replica-a"), type="Warning"),
    )
    found = resource(conditions={"Ready": UNREADY, "ModelReady": failed})
    explanation = explain(facts(found, pods=pods, events=events), NOW)
    assert said(explanation).count("“no tensors”") == 1
    assert [each.message for each in explanation.events] == ["made the replicas"]


def test_only_replicas_that_run_are_said_to_load_the_model() -> None:
    starting = pod(
        phase="Running", containerStatuses=[container(started=False, state={"running": {}})]
    )
    found = resource(conditions={"Ready": UNREADY}, model={"phase": "Loading"})
    assert "The model is being loaded by 1 replica." in why(found, pods=(starting,))
    assert "being loaded" not in why(found, pods=(pod(phase="Pending"),))


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


def test_commands_are_never_broken() -> None:
    found = resource(AUTO, lastDecision=decision("DemandAboveCapacity", 8, "MaxReplicas"))
    console = Console(width=40, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(explain(facts(found), NOW), console)
    lines = console.export_text().splitlines()
    assert [line for line in lines if "patch fgd chat" in line and "maxReplicas" in line]


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
