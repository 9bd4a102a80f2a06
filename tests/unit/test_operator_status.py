"""What a status says about what was observed."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from observed_objects import (
    LATER,
    NOW,
    OWNER,
    STARTING,
    conditions,
    crashed,
    deployment,
    message,
    observed,
    pod,
)

from fastgen_api import names
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner
from fastgen_operator.situation import Outcome
from fastgen_operator.status import OUR_CONDITIONS, same_status, status_of

DEFINITION = Path(__file__).resolve().parents[2] / "crds/fastgendeployments.fastgen.dev.yaml"


def test_all_as_declared() -> None:
    status = status_of(OWNER, observed(), NOW, {})
    assert conditions(status) == {
        "Ready": ("True", "AsDeclared"),
        "Reconciling": ("False", "Done"),
        "Stalled": ("False", "NotStalled"),
        "Available": ("True", "Serving"),
        "ModelReady": ("True", "Loaded"),
    }
    assert {name: value for name, value in status.items() if name != "conditions"} == {
        "observedGeneration": 3,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "selector": "app.kubernetes.io/component=replica,app.kubernetes.io/instance=chat,"
        "app.kubernetes.io/name=fastgen",
        "url": "http://chat.team.svc/v1",
        "runtimeImage": "runtime:1",
        "model": {"phase": "Ready"},
    }


def test_nothing_made_yet() -> None:
    status = status_of(OWNER, Observed(), NOW, {})
    assert conditions(status)["Ready"] == ("False", "RolloutInProgress")
    assert status["replicas"] == 0
    assert "runtimeImage" not in status


@pytest.mark.parametrize(
    ("replica", "balancer"),
    [
        (deployment("chat-replica", 2, observedGeneration=1), None),
        (deployment("chat-replica", 2, updatedReplicas=1), None),
        (deployment("chat-replica", 2, replicas=3), None),
        (deployment("chat-replica", 2, availableReplicas=1), None),
        (None, deployment("chat-balancer", 2, availableReplicas=1)),
    ],
    ids=["unseen", "outdated", "surplus", "unavailable", "balancer"],
)
def test_ready_needs_the_whole_rollout(replica: Any, balancer: Any) -> None:
    found = conditions(status_of(OWNER, observed(replica, balancer=balancer), NOW, {}))
    assert found["Ready"] == ("False", "RolloutInProgress")
    assert found["Reconciling"] == ("True", "RolloutInProgress")
    assert found["Available"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("replica", "balancer", "reason"),
    [
        (STARTING, None, "NoReplicaReady"),
        (None, deployment("chat-balancer", 2, readyReplicas=0), "NoBalancerReady"),
        (deployment("chat-replica", 0), None, "ScaledToZero"),
    ],
)
def test_available_needs_one_of_each(replica: Any, balancer: Any, reason: str) -> None:
    found = conditions(status_of(OWNER, observed(replica, balancer=balancer), NOW, {}))
    assert found["Available"] == ("False", reason)


def test_scaled_to_zero_is_as_declared() -> None:
    found = conditions(status_of(OWNER, observed(deployment("chat-replica", 0)), NOW, {}))
    assert found["Ready"] == ("True", "ScaledToZero")
    assert found["ModelReady"] == ("Unknown", "ScaledToZero")


@pytest.mark.parametrize(
    ("wakes", "words"),
    [(True, "the next request waits for one"), (False, "no replicas are wanted")],
)
def test_asleep_tells_whether_a_request_ends_it(wakes: bool, words: str) -> None:
    status = status_of(
        OWNER, observed(deployment("chat-replica", 0)), NOW, {}, Outcome(wakes=wakes)
    )
    assert conditions(status)["Reconciling"] == ("False", "Done")
    assert conditions(status)["Stalled"] == ("False", "NotStalled")
    for kind in ("Ready", "Available"):
        assert words in message(status, kind)


def test_waking_is_under_way_and_what_keeps_it_is_told() -> None:
    waking = status_of(OWNER, observed(STARTING), NOW, {}, Outcome(wakes=True))
    assert conditions(waking)["Reconciling"] == ("True", "RolloutInProgress")
    assert conditions(waking)["Available"] == ("False", "NoReplicaReady")


def test_too_long_without_progress_is_stalled_with_the_cause() -> None:
    deadline = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
                "message": "ReplicaSet has timed out."}  # fmt: skip
    replica = STARTING | {"status": STARTING["status"] | {"conditions": [deadline]}}
    status = status_of(OWNER, observed(replica, crashed("", 137)), NOW, {})
    found = conditions(status)
    assert found["Stalled"] == ("True", "ProgressDeadlineExceeded")
    assert "exited with code 137" in message(status, "Stalled")
    assert found["Reconciling"][0] == "False"
    assert found["Ready"] == ("False", "CrashLoopBackOff")


def test_what_could_not_be_applied_is_stalled() -> None:
    failure = Problem("NameConflict", "Service chat exists already")
    found = conditions(status_of(OWNER, Observed(), NOW, {}, Outcome(failure)))
    assert found["Ready"] == ("False", "NameConflict")
    assert found["Stalled"] == ("True", "NameConflict")
    assert found["Reconciling"][0] == "False"


def test_pausing_tells_so_and_speaks_of_what_was_applied() -> None:
    paused = Owner("chat", "team", "uid-1", generation=3, paused=True)
    current = status_of(paused, observed(), NOW, {"observedGeneration": 3})
    assert conditions(current)["Ready"] == ("True", "AsDeclared")
    assert conditions(current)["Reconciling"] == ("False", "Paused")
    edited = status_of(paused, observed(), NOW, {"observedGeneration": 2})
    assert edited["observedGeneration"] == 2
    assert conditions(edited)["Ready"] == ("False", "Paused")


def test_an_upgrade_that_waits_is_told() -> None:
    status = status_of(OWNER, observed(), NOW, {}, Outcome(upgrade="an earlier operator made it"))
    assert conditions(status)["UpgradeAvailable"] == ("True", "OperatorUpgraded")
    assert conditions(status)["Ready"] == ("True", "AsDeclared")


def test_times_move_only_with_the_status_of_a_condition() -> None:
    first = status_of(OWNER, observed(STARTING), NOW, {})
    second = status_of(OWNER, observed(), LATER, first)
    times = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert times["Ready"] == times["Available"] == "2025-01-02T04:04:05Z"
    assert times["Stalled"] == "2025-01-02T03:04:05Z"


def test_an_unchanged_status_is_the_same_beside_the_balancers_part() -> None:
    first = status_of(OWNER, observed(), NOW, {})
    theirs = {"type": "SLOMet", "status": "True", "reason": "Met", "message": "",
              "lastTransitionTime": "2025-01-01T00:00:00Z"}  # fmt: skip
    stored = first | {
        "conditions": [theirs, *reversed(first["conditions"])],
        "slo": {"goodPercent": "99"},
    }
    assert same_status(status_of(OWNER, observed(), LATER, stored), stored)
    assert not same_status(status_of(OWNER, observed(STARTING), LATER, stored), stored)


@pytest.mark.parametrize("field", ["replicas", "selector", "model", "url"])
def test_a_lost_field_is_written_again(field: str) -> None:
    stored = status_of(OWNER, observed(), NOW, {})
    ours = status_of(OWNER, observed(), LATER, stored)
    del stored[field]
    assert not same_status(ours, stored)


def test_an_obsolete_condition_is_removed() -> None:
    stored = status_of(OWNER, observed(), NOW, {}, Outcome(upgrade="soon"))
    assert not same_status(status_of(OWNER, observed(), LATER, stored), stored)


def test_the_operator_owns_only_its_conditions() -> None:
    kinds = {each["type"] for each in status_of(OWNER, observed(), NOW, {})["conditions"]}
    assert not kinds & {names.Condition.SLO_MET, names.Condition.SCALING_ACTIVE}


def test_conditions_speak_of_the_generation_that_the_status_does() -> None:
    first = status_of(OWNER, observed(), NOW, {})
    assert {each["observedGeneration"] for each in first["conditions"]} == {3}
    paused = Owner("chat", "team", "uid-1", generation=4, paused=True)
    edited = status_of(paused, observed(), NOW, first)
    assert {each["observedGeneration"] for each in edited["conditions"]} == {3}
    newer = status_of(Owner("chat", "team", "uid-1", generation=4), observed(), NOW, first)
    assert {each["observedGeneration"] for each in newer["conditions"]} == {4}
    assert not same_status(newer, first)


def test_a_generation_that_conditions_lack_is_not_worth_a_write() -> None:
    stored = status_of(OWNER, observed(), NOW, {})
    for each in stored["conditions"]:
        del each["observedGeneration"]
    assert same_status(status_of(OWNER, observed(), LATER, stored), stored)


def test_the_definition_says_which_conditions_are_never_set() -> None:
    definition = yaml.safe_load(DEFINITION.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    told = schema["properties"]["status"]["properties"]["conditions"]["description"]
    every = {value for name, value in vars(names.Condition).items() if name.isupper()}
    balancers = {names.Condition.SLO_MET, names.Condition.SCALING_ACTIVE}
    for unset in every - OUR_CONDITIONS - balancers:
        assert f"{unset} is not set by this version" in told


def test_that_the_scheduler_counts_its_nodes_anew_is_no_news() -> None:
    def waiting(message: str) -> Any:
        return pod(conditions=[{"type": "PodScheduled", "status": "False",
                                "reason": "Unschedulable", "message": message}])  # fmt: skip

    def told(message: str) -> Any:
        return status_of(OWNER, observed(STARTING, waiting(message)), NOW, {})

    stored = told("0/512 nodes are available: 301 Insufficient nvidia.com/gpu.")
    assert same_status(told("0/511 nodes are available: 300 Insufficient nvidia.com/gpu."), stored)
    assert not same_status(told("0/512 nodes are available: 301 Insufficient memory."), stored)
