"""What is told of pods that do not serve, and which events tell it."""

from typing import Any

import pytest
from observed_objects import (
    NOW,
    OWNER,
    STARTING,
    conditions,
    container,
    crashed,
    deployment,
    message,
    observed,
    pod,
)

from fastgen_api.names import Component
from fastgen_operator.ailments import is_stuck
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Problem
from fastgen_operator.situation import Outcome
from fastgen_operator.status import Notice, notices_of, status_of


@pytest.mark.parametrize(
    ("ailing", "reason", "words"),
    [
        (crashed("ModelNotFound: /models/x does not exist\n"), "ModelNotFound", "/models/x does"),
        (
            crashed("Traceback: nonsense"),
            "CrashLoopBackOff",
            "exited with code 1 (Error); its last words: Traceback: nonsense. See: kubectl ",
        ),
        (crashed("", 137), "CrashLoopBackOff", "exited with code 137"),
        (
            pod(containerStatuses=[container(state={"waiting": {
                "reason": "ErrImagePull", "message": "not found"}})]),
            "ImagePullBackOff", "image runtime:1 cannot be pulled: not found. Correct spec.image",
        ),
        (
            pod(containerStatuses=[container(state={"waiting": {
                "reason": "ImagePullBackOff",
                "message": 'Back-off pulling image "runtime:1": ErrImagePull: not found'}})]),
            "ImagePullBackOff", "image runtime:1 cannot be pulled: not found. Correct spec.image",
        ),
        (
            pod(Component.BALANCER, initContainerStatuses=[container("bootstrap", state={
                "waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}})]),
            "CreateContainerConfigError", "container bootstrap cannot be made: no secret",
        ),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/3 nodes are available: 3 Insufficient cpu."}]),
            "Unschedulable", "3 Insufficient cpu",
        ),
    ],
    ids=["own-words", "crash", "oom", "pull", "back-off", "config", "unschedulable"],
)  # fmt: skip
def test_pods_are_reported_in_their_own_words(ailing: Any, reason: str, words: str) -> None:
    status = status_of(OWNER, observed(STARTING, ailing), NOW, {})
    assert conditions(status)["Ready"] == ("False", reason)
    assert words in message(status, "Ready")
    assert conditions(status)["Stalled"][0] == "False"


def test_a_model_that_is_not_there_is_named() -> None:
    status = status_of(OWNER, observed(STARTING, crashed("ModelNotFound: no\n such file")), NOW, {})
    assert conditions(status)["ModelReady"] == ("False", "ModelNotFound")
    assert message(status, "ModelReady") == "no such file"
    assert status["model"] == {"phase": "Failed"}


def test_a_capacity_problem_is_a_condition_of_its_own() -> None:
    waiting = pod(conditions=[{"type": "PodScheduled", "status": "False",
                               "reason": "Unschedulable", "message": "0/1 nodes"}])  # fmt: skip
    blocked = status_of(OWNER, observed(STARTING, waiting), NOW, {})
    assert conditions(blocked)["CapacityBlocked"] == ("True", "Unschedulable")
    assert "CapacityBlocked" not in conditions(status_of(OWNER, observed(), NOW, blocked))


def test_pods_that_leave_or_serve_are_no_problem() -> None:
    leaving = crashed("ModelNotFound: gone")
    leaving["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z"
    serving = crashed("OutOfMemory: long ago", ready=True)
    serving["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    found = conditions(status_of(OWNER, observed(STARTING, leaving, serving), NOW, {}))
    assert found["Ready"] == ("False", "RolloutInProgress")


def test_quota_is_reported() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
               "message": "exceeded quota"}  # fmt: skip
    replica = deployment("chat-replica", 2, replicas=0, availableReplicas=0, conditions=[failure])
    assert conditions(status_of(OWNER, observed(replica), NOW, {}))["Ready"] == (
        "False",
        "FailedCreate",
    )


def test_events_tell_the_steps_and_no_state_twice() -> None:
    starting = status_of(OWNER, observed(STARTING), NOW, {})
    assert [notice.reason for notice in notices_of({}, starting, created=True)] == ["Created"]
    failed = status_of(OWNER, observed(STARTING, crashed("ModelNotFound: no file")), NOW, starting)
    assert notices_of(starting, failed, created=False) == (
        Notice("Warning", "ModelNotFound", "no file"),
    )
    assert notices_of(failed, failed, created=False) == ()
    ready = status_of(OWNER, observed(), NOW, failed)
    assert [notice.reason for notice in notices_of(failed, ready, created=False)] == ["Ready"]
    stalled = status_of(OWNER, observed(), NOW, ready, Outcome(Problem("InvalidSpec", "spec.x")))
    assert notices_of(ready, stalled, created=False) == (
        Notice("Warning", "InvalidSpec", "spec.x"),
    )


def test_stuck_are_the_pods_of_the_latest_template_alone() -> None:
    latest = deployment("chat-replica", 2)
    latest["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: "new"}

    def made_from(template: str, found: Any) -> Any:
        found["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: template}
        return found

    crash = made_from("new", crashed("", 137))
    old = made_from("old", pod(ready=True))
    new = made_from("new", pod(ready=True))
    waiting = made_from("new", pod(conditions=[{"type": "PodScheduled", "status": "False"}]))
    assert is_stuck(latest, observed(latest, crash, old))
    assert not is_stuck(latest, observed(latest, crash, new))
    assert not is_stuck(latest, observed(latest, waiting))
    assert not is_stuck(latest, observed(latest, made_from("old", crashed("", 137))))
    assert not is_stuck(latest, observed(latest))
    assert not is_stuck(None, observed(latest, crash))


def test_a_template_that_once_served_is_not_stuck_when_its_node_restarts() -> None:
    done = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    served = deployment("chat-replica", 1, conditions=[done])
    served["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: "new"}
    down = crashed("", 255)
    down["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: "new"}
    assert not is_stuck(served, observed(served, down))
    served["status"]["conditions"] = [done | {"reason": "ProgressDeadlineExceeded"}]
    assert is_stuck(served, observed(served, down))
