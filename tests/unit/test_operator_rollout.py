"""How a rollout goes on, and what is told of it."""

from datetime import timedelta
from typing import Any

import pytest
from observed_objects import NOW, container, pod
from rollout_model import GPU, NO_GPU, pod_spec

from fastgen_api.names import Component
from fastgen_api.spec import Rollout, RolloutStrategy
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.rollout import (
    IN_PLACE_ANNOTATION,
    Detour,
    RolloutDecision,
    carry_out,
    decide_rollout,
    detour_of,
    rollout_state,
)

AUTO = Rollout()
SURGE = Rollout(strategy=RolloutStrategy.SURGE)
IN_PLACE = Rollout(strategy=RolloutStrategy.IN_PLACE)
LONG_AGO = NOW - timedelta(minutes=5)
TOO_LARGE = NO_GPU.replace("No preemption victims found for incoming pod", "Preemption is not help")


def made_from(template: str, found: Any, spec: Any = None) -> Any:
    found["metadata"] |= {"annotations": {TEMPLATE_ANNOTATION: template}, "name": template}
    found["spec"] = spec or pod_spec()
    return found


def serving(**spec: Any) -> Any:
    return made_from("old", pod(ready=True), pod_spec() | {"nodeName": "node-1"} | spec)


def pending(message: str = NO_GPU, spec: Any = None, **status: Any) -> Any:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": message}  # fmt: skip
    return made_from("new", pod(conditions=[condition], **status), spec)


def decided(
    rollout: Rollout, *pods: Any, since: Any = LONG_AGO, wanted: int = 1, **deployment: Any
) -> RolloutDecision:
    template = {"spec": deployment.pop("spec", pod_spec())}
    annotations = {TEMPLATE_ANNOTATION: "new"} | deployment.pop("annotations", {})
    status = {"observedGeneration": 1, "replicas": len(pods), "readyReplicas": wanted,
              "availableReplicas": wanted, "updatedReplicas": 1}  # fmt: skip
    found = {
        "metadata": {"name": "chat-replica", "generation": 1, "annotations": annotations},
        "spec": {"replicas": wanted, "template": template},
        "status": status | deployment,
    }
    state = rollout_state(found, Observed({}, pods), "replica", NOW)
    return decide_rollout(rollout, state, since, NOW)


def blocked(decision: RolloutDecision) -> Problem:
    assert decision.blocked is not None
    return decision.blocked


def test_without_room_auto_goes_on_in_place_and_says_what_that_means() -> None:
    decision = decided(AUTO, serving(), pending())
    assert decision.detour == Detour(
        0, 1, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )
    problem = blocked(decision)
    assert problem.reason == "NoRoomToSurge"
    assert "1 Insufficient nvidia.com/gpu" in problem.message
    assert "nothing serves from then until the new one has loaded" in problem.message
    three = decided(AUTO, serving(), serving(), serving(), pending(), wanted=3)
    assert three.detour is not None
    assert three.detour.keep == 2
    assert "at least 2 of 3 go on serving" in blocked(three).message


def test_a_new_replica_gets_its_patience_before_anything_is_stopped() -> None:
    first = decided(AUTO, serving(), pending(), since=None)
    assert first == RolloutDecision(waiting_since=NOW, again=timedelta(seconds=20))
    early = decided(AUTO, serving(), pending(), since=NOW - timedelta(seconds=15))
    assert early.detour is None
    assert early.again == timedelta(seconds=5)
    assert decided(AUTO, serving(), pending(), since=NOW - timedelta(seconds=20)).detour


LOADING = made_from(
    "new", pod(containerStatuses=[container(state={"running": {}})]), pod_spec() | {"nodeName": "n"}
)
LEAVING = serving()
LEAVING["metadata"]["deletionTimestamp"] = "2025-01-02T03:05:00Z"
HUNG = serving()
HUNG["metadata"]["deletionTimestamp"] = "2025-01-02T03:00:00Z"


@pytest.mark.parametrize(
    ("pods", "goes_on"),
    [
        ((serving(), pending(), LOADING), True),
        ((serving(), pending(), LEAVING), True),
        ((serving(), pending(nominatedNodeName="node-1")), True),
        ((pending(),), True),
        ((serving(), pending(), HUNG), False),
    ],
    ids=["loading", "leaving", "preempting", "first start", "hung on a dead node"],
)
def test_a_rollout_that_goes_on_is_left_alone(pods: tuple[Any, ...], goes_on: bool) -> None:
    assert (decided(AUTO, *pods) == RolloutDecision()) is goes_on


@pytest.mark.parametrize(
    ("words", "is_room"),
    [
        ("0/3 nodes are available: 1 Too many pods, 2 node(s) had untolerated taint {a: b}.", True),
        ("0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory.", True),
        ("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", True),
        ("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
         True),
        ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", False),
        ('0/2 nodes are available: persistentvolumeclaim "models" not found.', False),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", False),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}. preemption: 0/1 "
         "nodes are available: 1 Insufficient cpu.", False),
    ],
)  # fmt: skip
def test_only_a_lack_of_room_is_one(words: str, is_room: bool) -> None:
    decision = decided(AUTO, serving(), pending(words))
    assert bool(decision.detour) is is_room
    problem = blocked(decision)
    assert problem.reason == ("NoRoomToSurge" if is_room else "Unschedulable")
    if not is_room:
        assert problem.message.startswith("the new replicas do not start, an earlier replica serve")


def test_an_image_that_cannot_be_pulled_is_no_lack_of_room() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    failing = made_from("new", pod(containerStatuses=[container(state=waiting)]))
    decision = decided(AUTO, serving(), serving(), failing, wanted=2)
    assert decision.detour is None
    problem = blocked(decision)
    assert problem.reason == "ImagePullBackOff"
    assert "2 earlier replicas serve on: container runtime: image runtime:1" in problem.message
    assert decided(AUTO, failing) == RolloutDecision(), "a first start is no rollout"


@pytest.mark.parametrize(
    ("newcomer", "running", "message", "why"),
    [
        (pod_spec(**{GPU: "2"}), {}, NO_GPU, "asks for more nvidia.com/gpu than a running one"),
        (pod_spec(), {}, TOO_LARGE, "no node is large enough"),
        (pod_spec() | {"nodeSelector": {"a": "b"}}, {}, NO_GPU, "nodeSelector differs"),
        (pod_spec(), {"tolerations": [{"key": "team", "operator": "Exists"}]}, NO_GPU,
         "tolerations differ"),
    ],
    ids=["more GPUs", "no node", "other nodes", "other taints"],
)  # fmt: skip
def test_nothing_is_stopped_for_a_replica_that_may_not_fit(
    newcomer: Any, running: Any, message: str, why: str
) -> None:
    decision = decided(AUTO, serving(**running), pending(message, newcomer), spec=newcomer)
    assert decision.detour is None
    problem = blocked(decision)
    assert problem.reason == "NoRoomToSurge"
    assert why in problem.message
    assert "an earlier replica serves on" in problem.message
    assert "set spec.rollout.strategy to InPlace" in problem.message


@pytest.mark.parametrize(
    "running",
    [
        {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]},
        {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]},
        {"schedulerName": "default-scheduler"},
    ],
)
def test_what_admission_adds_makes_no_difference(running: Any) -> None:
    assert decided(AUTO, serving(**running), pending()).detour


def test_more_of_what_is_not_scarce_is_no_obstacle() -> None:
    more = pod_spec(**{GPU: "1", "cpu": "8"})
    assert decided(AUTO, serving(), pending(spec=more), spec=more).detour


QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": 'pods "chat-replica-1" is forbidden: exceeded quota: gpus, requested: '
    "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: 1",
}


def test_a_quota_is_a_lack_of_room_too() -> None:
    decision = decided(AUTO, serving(), conditions=[QUOTA])
    assert decision.detour is not None
    assert "exceeded quota: gpus" in blocked(decision).message
    more = decided(AUTO, serving(), conditions=[QUOTA], spec=pod_spec(**{GPU: "2"}))
    assert more.detour is None
    other = QUOTA | {"message": "admission webhook denied the request"}
    assert decided(AUTO, serving(), conditions=[other]) == RolloutDecision()


def test_surge_waits_and_says_how_to_go_on() -> None:
    decision = decided(SURGE, serving(), pending())
    assert decision.detour is None
    message = blocked(decision).message
    for words in ("Surge waits", "an earlier replica serves on", "Auto or InPlace", "make room"):
        assert words in message


def test_what_is_declared_unavailable_is_never_exceeded() -> None:
    for rollout in (IN_PLACE, Rollout(max_unavailable=1)):
        decision = decided(rollout, serving(), pending(), wanted=2)
        assert decision.detour is None
        assert "spec.rollout.maxUnavailable allows" in blocked(decision).message


def on_detour(keep: int = 0) -> dict[str, str]:
    carried = carry_out(
        {"metadata": {"annotations": {}}, "spec": {"strategy": {}}},
        RolloutDecision(Detour(keep, 1, "no GPU")),
        wanted=1,
    )
    return dict(carried["metadata"]["annotations"])


def test_a_detour_holds_until_the_new_replicas_serve() -> None:
    loading = decided(AUTO, LOADING, annotations=on_detour(), availableReplicas=0)
    assert loading.detour == Detour(0, 1, "no GPU")
    assert "no GPU" in blocked(loading).message
    ready = made_from("new", pod(ready=True))
    assert decided(AUTO, ready, annotations=on_detour()) == RolloutDecision()
    unseen = decided(AUTO, serving(), annotations=on_detour(), observedGeneration=0)
    assert unseen.detour, "an edit has just been made"


@pytest.mark.parametrize(
    ("pods", "is_complete"),
    [
        ((made_from("new", pod(ready=True)),), True),
        ((serving(),), False),
        ((made_from("new", pod(ready=True)), serving()), False),
        ((), False),
    ],
    ids=["a note on the Deployment", "another template", "both", "another number"],
)
def test_an_edit_that_is_not_seen_yet_undoes_a_rollout_only_where_pods_change(
    pods: Any, is_complete: bool
) -> None:
    deployment = {
        "metadata": {"generation": 2, "annotations": {TEMPLATE_ANNOTATION: "new"}},
        "spec": {"replicas": 1, "template": {"spec": pod_spec()}},
        "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1,
                   "availableReplicas": 1, "updatedReplicas": 1},
    }  # fmt: skip
    state = rollout_state(deployment, Observed({}, pods), Component.REPLICA, NOW)
    assert state.replicas.complete == is_complete


def test_a_detour_ends_with_another_strategy() -> None:
    for rollout in (SURGE, IN_PLACE):
        assert decided(rollout, serving(), pending(), annotations=on_detour()).detour is None


def test_a_failing_replica_is_told_on_a_detour_too() -> None:
    crashed = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no weights"}}
    failing = made_from("new", pod(containerStatuses=[container(lastState=crashed)]))
    decision = decided(AUTO, serving(), failing, annotations=on_detour(), availableReplicas=1)
    assert decision.detour
    assert blocked(decision).reason == "CrashLoopBackOff"


def test_a_detour_is_carried_out_in_the_deployment_and_read_from_it() -> None:
    desired: dict[str, Any] = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
    }
    assert carry_out(desired, RolloutDecision(), 3) is desired
    detour = Detour(keep=1, wanted=3, because="no GPU")
    carried = carry_out(desired, RolloutDecision(detour), 3)
    assert carried["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2},
    }
    assert detour_of(carried) == detour
    assert desired["metadata"]["annotations"] == {"a": "b"}
    carried["metadata"]["annotations"][IN_PLACE_ANNOTATION] = "nonsense"
    assert detour_of(carried) is None
    assert detour_of(None) is None
    fewer = carry_out(desired, RolloutDecision(detour), 1)
    assert fewer["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1
