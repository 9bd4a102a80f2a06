"""What a status says about what was observed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_operator.ailments import is_stuck
from fastgen_operator.children import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner, child_labels
from fastgen_operator.status import Notice, notices_of, same_status, status_of

OWNER = Owner("chat", "team", "uid-1", generation=3)
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def deployment(name: str, wanted: int, **status: Any) -> dict[str, Any]:
    counts = {"replicas": wanted, "updatedReplicas": wanted, "readyReplicas": wanted,
              "availableReplicas": wanted, "observedGeneration": 2}  # fmt: skip
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "generation": 2},
        "spec": {
            "replicas": wanted,
            "template": {"spec": {"containers": [{"name": "runtime", "image": "runtime:1"}]}},
        },
        "status": counts | status,
    }


def pod(component: Component = Component.REPLICA, *, ready: bool = False, **status: Any) -> Any:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "pod-1", "labels": child_labels(OWNER, component),
                     "creationTimestamp": "2025-01-01T00:00:00Z"},
        "status": {"conditions": [*status.pop("conditions", []), *conditions], **status},
    }  # fmt: skip


def container(name: str = "runtime", **status: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "image": "runtime:1", "state": {}} | status


def observed(
    replica: dict[str, Any] | None = None, *pods: Any, balancer: dict[str, Any] | None = None
) -> Observed:
    deployments = [replica or deployment("chat-replica", 2),
                   balancer or deployment("chat-balancer", 2)]  # fmt: skip
    return Observed({("Deployment", each["metadata"]["name"]): each for each in deployments}, pods)


STARTING = deployment("chat-replica", 2, readyReplicas=0, availableReplicas=0)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(each["message"]) for each in status["conditions"] if each["type"] == kind)


def crashed(text: str, code: int = 1, **more: Any) -> Any:
    end = {"terminated": {"exitCode": code, "reason": "Error", "message": text}}
    return pod(containerStatuses=[container(lastState=end, restartCount=1, **more)])


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
    ("ailing", "reason", "words"),
    [
        (crashed("ModelNotFound: /models/x does not exist\n"), "ModelNotFound", "/models/x does"),
        (crashed("Traceback: nonsense"), "CrashLoopBackOff", "exited with code 1 (Error): Trace"),
        (crashed("", 137), "CrashLoopBackOff", "exited with code 137"),
        (
            pod(containerStatuses=[container(state={"waiting": {
                "reason": "ErrImagePull", "message": "not found"}})]),
            "ImagePullBackOff", "runtime:1): not found",
        ),
        (
            pod(containerStatuses=[container(state={"waiting": {
                "reason": "ImagePullBackOff",
                "message": 'Back-off pulling image "runtime:1": ErrImagePull: not found'}})]),
            "ImagePullBackOff", "runtime:1): not found",
        ),
        (
            pod(Component.BALANCER, initContainerStatuses=[container("bootstrap", state={
                "waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}})]),
            "CreateContainerConfigError", "container bootstrap: no secret",
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
    found = conditions(status_of(OWNER, Observed(), NOW, {}, failure=failure))
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
    status = status_of(OWNER, observed(), NOW, {}, upgrade="an earlier operator made it")
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
    stored = status_of(OWNER, observed(), NOW, {}, upgrade="soon")
    assert not same_status(status_of(OWNER, observed(), LATER, stored), stored)


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
    stalled = status_of(OWNER, observed(), NOW, ready, failure=Problem("InvalidSpec", "spec.x"))
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


def test_the_operator_owns_only_its_conditions() -> None:
    kinds = {each["type"] for each in status_of(OWNER, observed(), NOW, {})["conditions"]}
    assert not kinds & {names.Condition.SLO_MET, names.Condition.SCALING_ACTIVE}
