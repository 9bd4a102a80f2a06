"""What a status tells those who wait by the rules of kstatus, whatever was observed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kstatus import kstatus
from observed_objects import NOW, OWNER, container, crashed, deployment, observed, pod

from fastgen_api.delivery import ModelPhase
from fastgen_api.names import Component
from fastgen_operator.delivery import Delivered, Delivery
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner
from fastgen_operator.rollout import Detour, RolloutDecision
from fastgen_operator.situation import Outcome
from fastgen_operator.status import status_of

LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "ReplicaSet has timed out progressing."}  # fmt: skip
QUOTA = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
           "message": "0/1 nodes are available: 1 Insufficient cpu."}  # fmt: skip


def deployments(name: str) -> st.SearchStrategy[Any]:
    counts = st.integers(0, 3)
    return st.none() | st.builds(
        lambda wanted, conditions, **status: deployment(
            name, wanted, conditions=list(conditions), **status
        ),
        st.integers(0, 2),
        st.sets(st.sampled_from(range(2))).map(
            lambda chosen: tuple((LATE, QUOTA)[each] for each in chosen)
        ),
        replicas=counts,
        updatedReplicas=counts,
        readyReplicas=counts,
        availableReplicas=counts,
        observedGeneration=st.integers(1, 2),
    )


pods = st.lists(
    st.sampled_from(
        [
            pod(ready=True),
            crashed("ModelNotFound: no such file"),
            crashed("Traceback", 137),
            pod(conditions=[NO_ROOM]),
            pod(Component.BALANCER, conditions=[NO_ROOM]),
            pod(containerStatuses=[container(state={"waiting": {"reason": "ErrImagePull"}})]),
        ]
    ),
    max_size=3,
)
problems = st.just(Problem("Some", "words"))
deliveries = st.none() | st.sampled_from(
    [
        Delivery(Delivered(key="", path="")),
        Delivery(None, ModelPhase.DOWNLOADING, "Downloading", "1 of 2 GB"),
        Delivery(None, ModelPhase.FAILED, "AccessDenied", "no token"),
    ]
)
rollouts = st.sampled_from(
    [
        RolloutDecision(),
        RolloutDecision(blocked=Problem("NoRoomToSurge", "no room")),
        RolloutDecision(Detour(0, 1, "no room"), Problem("NoRoomToSurge", "no room")),
    ]
)
outcomes = st.builds(
    Outcome,
    failure=st.none() | problems,
    hindrance=st.none() | problems,
    upgrade=st.sampled_from(["", "newer"]),
    frozen=st.booleans(),
    wakes=st.booleans(),
    delivery=deliveries,
    rollout=rollouts,
)


def told(status: dict[str, Any], kind: str) -> str:
    return next(str(each["status"]) for each in status["conditions"] if each["type"] == kind)


@given(
    deployments("chat-replica"),
    deployments("chat-balancer"),
    pods,
    outcomes,
    st.booleans(),
    st.integers(-1, 3),
)
def test_it_is_done_exactly_when_it_is_ready(
    replica: Any, balancer: Any, pods: list[Any], outcome: Outcome, paused: bool, before: int
) -> None:
    made = {("Deployment", each["metadata"]["name"]): each for each in (replica, balancer) if each}
    owner = Owner("chat", "team", "uid-1", generation=3, paused=paused)
    if paused:  # Then nothing is made, so nothing fails.
        missing = (("Service", "chat"),) if outcome.failure else ()
        outcome = Outcome(frozen=outcome.frozen, missing=missing, rollout=outcome.rollout)
    status = status_of(
        owner, Observed(made, tuple(pods)), NOW, {"observedGeneration": before}, outcome
    )
    resource = {"metadata": {"generation": 3}, "status": status}
    is_ready = told(status, "Ready") == "True"
    is_seen = status["observedGeneration"] == 3
    assert (kstatus(resource) == "Current") is (is_ready and is_seen)
    if is_seen:
        assert (kstatus(resource) == "Failed") is (told(status, "Stalled") == "True")
    assert not (told(status, "Reconciling") == told(status, "Stalled") == "True")
    assert is_seen or told(status, "Ready") == "False"
    for condition in status["conditions"]:
        assert condition["message"], condition["type"]


@pytest.mark.parametrize(
    ("outcome", "replica", "expected"),
    [
        (Outcome(), None, "Current"),
        (Outcome(), deployment("chat-replica", 0), "Current"),
        (Outcome(wakes=True), deployment("chat-replica", 0), "Current"),
        (Outcome(), deployment("chat-replica", 2, availableReplicas=1), "InProgress"),
        (Outcome(Problem("NameConflict", "a Service of this name exists")), None, "Failed"),
        (Outcome(), deployment("chat-replica", 2, availableReplicas=1, conditions=[LATE]),
         "Failed"),
        (Outcome(rollout=RolloutDecision(Detour(0, 1, ""), Problem("NoRoomToSurge", "none"))),
         deployment("chat-replica", 1, availableReplicas=0), "InProgress"),
        (Outcome(delivery=Delivery(None, ModelPhase.DOWNLOADING, "Downloading", "1 of 2 GB")),
         None, "InProgress"),
        (Outcome(delivery=Delivery(None, ModelPhase.FAILED, "AccessDenied", "no token")),
         None, "Failed"),
        (Outcome(upgrade="newer", frozen=True), None, "Current"),
    ],
    ids=["serves", "at zero", "asleep", "rolls out", "conflict", "too late", "in place",
         "downloads", "no download", "remarks"],
)  # fmt: skip
def test_situations_and_what_helm_makes_of_them(
    outcome: Outcome, replica: Any, expected: str
) -> None:
    status = status_of(OWNER, observed(replica), NOW, {}, outcome)
    resource: dict[str, Any] = {"metadata": {"generation": 3}, "status": status}
    assert kstatus(resource) == expected
    assert kstatus(resource | {"metadata": {"generation": 4}}) == "InProgress"
    deleting = {"generation": 3, "deletionTimestamp": "2025-01-01T00:00:00Z"}
    assert kstatus(resource | {"metadata": deleting}) == "Terminating"


def test_what_no_operator_has_seen_is_not_done() -> None:
    unseen = {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}
    assert kstatus(unseen) == "InProgress"
