"""What a status says while pods come and go, and how long that may take."""

from datetime import timedelta
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
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.obsolete import obsolete_conditions
from fastgen_operator.rollout import Detour, RolloutDecision
from fastgen_operator.situation import Outcome
from fastgen_operator.status import OUR_CONDITIONS, Notice, notices_of, status_of

NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
           "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}  # fmt: skip
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "ReplicaSet has timed out progressing."}  # fmt: skip
BLOCKED = Problem("NoRoomToSurge", "there is no room")


def placed(found: Any, template: str = "new") -> Any:
    found["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: template}
    return found | {"spec": {"nodeName": "node-1"}}


def latest(wanted: int = 2, **status: Any) -> Any:
    found = deployment("chat-replica", wanted, **{"availableReplicas": 0, **status})
    found["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: "new"}
    return found


LOADING = placed(pod(containerStatuses=[container(state={"running": {}})]))
DOWNLOADING = placed(
    pod(initContainerStatuses=[container("download", state={"running": {}})],
        containerStatuses=[container(state={"waiting": {"reason": "PodInitializing"}})])
)  # fmt: skip
CREATING = placed(
    pod(containerStatuses=[container(state={"waiting": {"reason": "ContainerCreating"}})])
)
WITHOUT_NODE = pod(conditions=[{"type": "PodScheduled", "status": "False",
                                "reason": "SchedulingGated", "message": ""}])  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "ready", "words"),
    [
        ((LOADING, LOADING), 0, "replicas: 0 of 2 ready; 2 loading the model"),
        ((LOADING, DOWNLOADING), 0, "0 of 2 ready; 1 loading the model; 1 downloading the model"),
        ((CREATING,), 1, "replicas: 1 of 2 ready; 1 waiting for image and volumes"),
        ((placed(pod(ready=True), "old"), LOADING), 1,
         "1 of 2 ready, 0 of them in the new form; 1 loading the model"),
    ],
)  # fmt: skip
def test_progress_tells_what_each_replica_does(
    pods: tuple[Any, ...], ready: int, words: str
) -> None:
    status = status_of(OWNER, observed(latest(readyReplicas=ready), *pods), NOW, {})
    assert conditions(status)["Ready"] == ("False", "RolloutInProgress")
    assert words in message(status, "Ready")
    assert message(status, "Reconciling") == message(status, "Ready")


def test_the_balancer_is_told_of_when_the_replicas_are_ready() -> None:
    starting = deployment("chat-balancer", 2, readyReplicas=1, availableReplicas=1)
    status = status_of(OWNER, observed(balancer=starting), NOW, {})
    assert message(status, "Ready") == "balancer: 1 of 2 ready"


def test_ailments_of_earlier_pods_are_not_those_of_the_new_ones() -> None:
    old = placed(crashed("ModelNotFound: what has been corrected"), "old")
    status = status_of(OWNER, observed(latest(), old, LOADING), NOW, {})
    assert conditions(status)["Ready"] == ("False", "RolloutInProgress")
    assert conditions(status)["ModelReady"][0] != "False"


def leaving(seconds: int) -> Any:
    found = placed(pod(ready=True), "old")
    until = NOW + timedelta(seconds=seconds)
    found["metadata"]["deletionTimestamp"] = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def unplaced() -> Any:
    found = pod(conditions=[NO_ROOM])
    found["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: "new"}
    return found


def test_a_pod_that_waits_for_a_leaving_ones_room_lacks_none() -> None:
    on_its_way = status_of(OWNER, observed(latest(1), unplaced(), leaving(20)), NOW, {})
    assert "CapacityBlocked" not in conditions(on_its_way)
    assert "1 on the way out, streams end first" in message(on_its_way, "Ready")
    alone = status_of(OWNER, observed(latest(1), unplaced()), NOW, {})
    assert conditions(alone)["CapacityBlocked"] == ("True", "Unschedulable")
    assert "1 Insufficient nvidia.com/gpu" in message(alone, "CapacityBlocked")
    hung = status_of(OWNER, observed(latest(1), unplaced(), leaving(-300)), NOW, {})
    assert "CapacityBlocked" in conditions(hung)


def test_an_unbound_claim_is_no_lack_of_capacity() -> None:
    unbound = NO_ROOM | {"message": "pod has unbound immediate PersistentVolumeClaims."}
    status = status_of(OWNER, observed(STARTING, pod(conditions=[unbound])), NOW, {})
    assert "CapacityBlocked" not in conditions(status)
    assert conditions(status)["Ready"] == ("False", "Unschedulable")


def test_a_blocked_rollout_is_a_condition_and_the_reason_while_it_waits() -> None:
    found = observed(latest(1), placed(pod(ready=True), "old"), unplaced())
    waits = status_of(OWNER, found, NOW, {}, Outcome(rollout=RolloutDecision(blocked=BLOCKED)))
    assert conditions(waits)["RolloutBlocked"] == ("True", "NoRoomToSurge")
    assert conditions(waits)["Ready"] == ("False", "NoRoomToSurge")
    goes_on = RolloutDecision(Detour(0, 1, "no room"), BLOCKED)
    loading = status_of(OWNER, observed(latest(1), LOADING), NOW, {}, Outcome(rollout=goes_on))
    assert conditions(loading)["RolloutBlocked"] == ("True", "NoRoomToSurge")
    assert conditions(loading)["Ready"] == ("False", "RolloutInProgress")
    done = status_of(OWNER, observed(), NOW, loading)
    assert "RolloutBlocked" not in conditions(done)


def late(*pods: Any, seconds: int = 600) -> dict[str, Any]:
    replica = latest(1, readyReplicas=0, conditions=[LATE])
    replica["spec"]["progressDeadlineSeconds"] = seconds
    return status_of(OWNER, observed(replica, *pods), NOW, {})


def test_a_replica_that_loads_for_a_quarter_of_an_hour_is_not_reported_failed() -> None:
    """Its deadline is half an hour, so Kubernetes says nothing of it yet."""
    began = (NOW - timedelta(minutes=15)).strftime("%Y-%m-%dT%H:%M:%SZ")
    loading = placed(pod(containerStatuses=[container(state={"running": {"startedAt": began}})]))
    found = conditions(status_of(OWNER, observed(latest(1), loading), NOW, {}))
    assert found["Stalled"] == ("False", "NotStalled")
    assert found["Reconciling"] == ("True", "RolloutInProgress")


def test_no_progress_for_too_long_is_stalled_and_says_for_how_long() -> None:
    status = late(LOADING)
    assert conditions(status)["Stalled"] == ("True", "ProgressDeadlineExceeded")
    assert message(status, "Stalled") == (
        "nothing came further for 600 s: replicas: 0 of 1 ready; 1 loading the model"
    )


def downloaded(ended: timedelta) -> Any:
    at = (NOW - ended).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"terminated": {"exitCode": 0, "finishedAt": at}}
    return placed(pod(initContainerStatuses=[container("download", state=done)],
                       containerStatuses=[container(state={"running": {}})]))  # fmt: skip


@pytest.mark.parametrize(
    ("found", "is_stalled"),
    [
        (DOWNLOADING, False),
        (downloaded(timedelta(minutes=5)), False),
        (downloaded(timedelta(minutes=15)), True),
    ],
    ids=["downloading", "loading since", "loading for too long"],
)
def test_a_download_in_the_pod_is_progress(found: Any, is_stalled: bool) -> None:
    assert (conditions(late(found))["Stalled"][0] == "True") is is_stalled


def test_a_quota_is_told_without_the_name_of_a_pod_that_never_was() -> None:
    failure = {
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": 'pods "chat-replica-5d9-x7k2p" is forbidden: exceeded quota: gpus',
    }  # fmt: skip
    status = status_of(OWNER, observed(latest(1, conditions=[failure])), NOW, {})
    assert message(status, "Ready") == (
        "exceeded quota: gpus. Raise the ResourceQuota, or ask for less in spec.resources"
    )


def test_an_ended_pod_is_a_record_and_no_ailment() -> None:
    evicted = placed(crashed("", 137))
    evicted["status"]["phase"] = "Failed"
    status = status_of(OWNER, observed(latest(1), evicted, LOADING), NOW, {})
    assert conditions(status)["Ready"] == ("False", "RolloutInProgress")


def managed(**fields: Any) -> dict[str, Any]:
    keys = {'k:{"type":"Progressing"}': {}, 'k:{"type":"Ready"}': {}, ".": {}}
    entry = {"manager": "fastgen-operator", "operation": "Apply", "subresource": "status",
             "fieldsV1": {"f:status": {"f:conditions": keys}}}  # fmt: skip
    return {"metadata": {"managedFields": [entry | fields]}}


@pytest.mark.parametrize(
    ("resource", "found"),
    [
        (managed(), {"Progressing"}),
        (managed(manager="fastgen-balancer"), set()),
        (managed(operation="Update"), set()),
        (managed(subresource=None), set()),
        (managed(fieldsV1={"f:status": {"f:url": {}}}), set()),
        ({"metadata": {}}, set()),
    ],
)
def test_conditions_of_removed_features_are_found_by_their_owner(
    resource: Any, found: set[str]
) -> None:
    assert obsolete_conditions(resource, OUR_CONDITIONS) == found


def test_an_event_tells_each_reason_once() -> None:
    starting = status_of(OWNER, Observed(), NOW, {"observedGeneration": -1})
    unseen = {"observedGeneration": -1}
    assert [each.reason for each in notices_of(unseen, starting, created=True)] == ["Created"]
    pulling = pod(containerStatuses=[container(state={"waiting": {"reason": "ErrImagePull"}})])
    held_up = Outcome(rollout=RolloutDecision(blocked=Problem("ImagePullBackOff", "serves on")))
    failing = status_of(OWNER, observed(STARTING, pulling), NOW, starting, held_up)
    (notice,) = notices_of(starting, failing, created=False)
    assert notice == Notice("Warning", "ImagePullBackOff", message(failing, "Ready"))
    blocked = Outcome(rollout=RolloutDecision(Detour(0, 1, ""), BLOCKED))
    in_place = status_of(OWNER, observed(latest(1), LOADING), NOW, failing, blocked)
    assert Notice("Warning", "NoRoomToSurge", BLOCKED.message) in notices_of(
        failing, in_place, created=False
    )


def test_the_end_of_ready_is_an_event_whatever_ends_it() -> None:
    serving = status_of(OWNER, observed(), NOW, {})
    rolling = status_of(OWNER, observed(latest(), LOADING), NOW, serving)
    words = message(rolling, "Ready")
    assert notices_of(serving, rolling, created=False) == (
        Notice("Normal", "RolloutInProgress", words),
    )
    later = status_of(OWNER, observed(latest(), LOADING, LOADING), NOW, rolling)
    assert notices_of(rolling, later, created=False) == ()


def test_a_component_without_a_mark_counts_all_its_pods() -> None:
    """As an operator of the first versions made them."""
    status = status_of(OWNER, observed(STARTING, pod(Component.BALANCER, conditions=[NO_ROOM])),
                       NOW, {})  # fmt: skip
    assert "CapacityBlocked" in conditions(status)
