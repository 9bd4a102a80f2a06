"""The sentences that tell what is amiss with a pod and what to do about it."""

from datetime import timedelta
from typing import Any

import pytest
from observed_objects import NOW, container, crashed, pod

from fastgen_api.names import Component
from fastgen_operator.ailments import first_ailment
from fastgen_operator.mounts import USUAL, mount_warning, pods_to_ask_about
from fastgen_operator.observed import Observed, Problem

LIMITED = {"containers": [{"name": "runtime", "resources": {"limits": {"memory": "2Gi"}}}]}


def waiting(reason: str, message: str = "", name: str = "runtime", **more: Any) -> Any:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[container(name, state=state)], **more)


def ended(
    reason: str,
    code: int,
    spec: Any = None,
    component: Component = Component.REPLICA,
    message: str = "",
) -> Any:
    end = {"terminated": {"reason": reason, "exitCode": code, "message": message}}
    found = pod(component, containerStatuses=[container(lastState=end)])
    return found | {"spec": spec or {"containers": []}}


def unscheduled(message: str, component: Component = Component.REPLICA) -> Any:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": message}  # fmt: skip
    return pod(component, conditions=[condition])


@pytest.mark.parametrize(
    ("ailing", "reason", "words"),
    [
        (ended("OOMKilled", 137, LIMITED), "OOMKilled",
         "container runtime was killed because it took more memory than its limit (2Gi). Raise "
         "spec.resources.limits.memory, or lower spec.engine.memoryPercent"),
        (ended("OOMKilled", 1, LIMITED, message="OutOfMemory: the engine was killed"),
         "OutOfMemory", "the engine was killed (its limit is 2Gi)"),
        (ended("OOMKilled", 137), "OOMKilled", "more memory than its node had"),
        (ended("OOMKilled", 137, component=Component.BALANCER), "OOMKilled", "The node has too"),
        (waiting("InvalidImageName", "couldn't parse"), "ImagePullBackOff", "Correct spec.image"),
        (waiting("ErrImagePull", 'rpc error: code = NotFound desc = failed to pull and unpack '
                 'image "r:1": failed to resolve reference "r:1": r:1: not found'),
         "ImagePullBackOff", "image runtime:1 cannot be pulled: r:1: not found. Correct"),
        (waiting("ErrImagePull", "no", "sidecar"), "ImagePullBackOff", "Correct it in spec.podT"),
        (waiting("CreateContainerConfigError", 'secret "hf" not found', "download"),
         "CreateContainerConfigError",
         'container download cannot be made: secret "hf" not found. Create it in namespace '
         "team, or correct spec.model.tokenSecretRef"),
        (waiting("CreateContainerConfigError", "couldn't find key token in Secret team/hf"),
         "CreateContainerConfigError", "Add the key, or correct spec.podTemplate"),
        (waiting("RunContainerError", "exec: no such file"), "RunContainerError", "no such file"),
        (unscheduled("0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, "
                     "preemption: 0/2 nodes are available: 2 No preemption victims found."),
         "Unschedulable",
         "0/2 nodes are available: 2 Insufficient cpu. Make room on a node, or ask for less in "
         "spec.resources"),
        (unscheduled("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}."),
         "Unschedulable", "Correct spec.nodeSelector, spec.affinity or spec.tolerations"),
        (unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
         "Unschedulable", "kubectl describe pvc"),
        (unscheduled("0/1 nodes are available: 1 Insufficient cpu.", Component.BALANCER),
         "Unschedulable", "1 Insufficient cpu. Make room on a node"),
    ],
)  # fmt: skip
def test_an_ailment_is_told_with_what_to_do(ailing: Any, reason: str, words: str) -> None:
    ailing["metadata"]["namespace"] = "team"
    problem = first_ailment([ailing])
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message


def test_a_crash_is_told_with_the_last_line_of_the_log_and_where_to_find_more() -> None:
    ailing = crashed("first\nRuntimeError: no such operator\n\n")
    ailing["metadata"]["namespace"] = "team"
    assert first_ailment([ailing]) == Problem(
        "CrashLoopBackOff",
        "container runtime exited with code 1 (Error); its last words: RuntimeError: no such "
        "operator. See: kubectl -n team logs pod-1 -c runtime --previous",
    )


def creating(name: str, waited: timedelta, component: Component = Component.REPLICA) -> Any:
    since = (NOW - waited).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    state = {"waiting": {"reason": "ContainerCreating"}}
    found = pod(component, conditions=[condition], containerStatuses=[container(state=state)])
    found["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return found | {"spec": {"nodeName": "node-1"}}


def test_pods_that_wait_for_their_volumes_are_asked_about_after_a_while() -> None:
    slow, slower = creating("a", USUAL), creating("b", 2 * USUAL, Component.BALANCER)
    fresh = creating("c", timedelta(seconds=5))
    asked, again = pods_to_ask_about(Observed({}, (slow, slower, fresh)), NOW)
    assert [each["metadata"]["name"] for each in asked] == ["a", "b"]
    assert again == USUAL - timedelta(seconds=5)
    many = Observed({}, tuple(creating(str(each), USUAL) for each in range(9)))
    assert len(pods_to_ask_about(many, NOW)[0]) == 2
    started = creating("d", USUAL)
    started["status"]["containerStatuses"][0]["state"] = {"running": {}}
    unplaced = creating("e", USUAL) | {"spec": {}}
    assert pods_to_ask_about(Observed({}, (started, unplaced)), NOW) == ((), None)


def event(reason: str, note: str, minute: int, uid: str = "uid-a") -> dict[str, Any]:
    return {"reason": reason, "note": note, "regarding": {"uid": uid},
            "deprecatedLastTimestamp": f"2025-01-01T00:{minute:02}:00Z"}  # fmt: skip


def test_the_most_telling_event_about_a_mount_is_quoted() -> None:
    ailing = creating("a", USUAL)
    sandbox = f'failed to setup network for sandbox "{"0123456789abcdef" * 4}": no address'
    events = [
        event("FailedMount", "Unable to attach or mount volumes: timed out", 9),
        event("FailedMount", 'MountVolume.SetUp failed for volume "x" : secret "y" not found', 5),
        event("FailedCreatePodSandBox", sandbox, 7),
        event("FailedScheduling", "0/1 nodes", 8),
        event("FailedMount", "another pod's", 8, uid="uid-z"),
    ]
    words = mount_warning(events, ailing)
    assert words == 'MountVolume.SetUp failed for volume "x" : secret "y" not found'
    assert mount_warning(events[2:3], ailing).endswith('sandbox "…": no address')
    assert mount_warning(events[3:], ailing) == ""
    ailing["metadata"]["namespace"] = "team"
    problem = first_ailment([ailing], {"a": words})
    assert problem == Problem("FailedMount", f"{words}. Create it in namespace team, or correct "
                              "spec.podTemplate")  # fmt: skip
