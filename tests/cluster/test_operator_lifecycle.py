"""What the operator says of what it cannot make, on a real API server.

The images named here do not exist: what pods do is the business of test_operator_pods.
"""

import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess
from operator_questions import (
    delete,
    has_all_children,
    is_stalled,
    pull_failed_and_quiet,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_foreign_object_is_reported_and_left_alone(operator: OperatorProcess) -> None:
    operator.kubectl("create", "service", "clusterip", "taken", "--tcp=5432")
    before = operator.get("service", "taken")
    operator.create("taken")
    stalled = wait_until(
        "the conflict",
        lambda: is_stalled(operator, "taken"),
        seconds=20,
    )
    assert stalled["reason"] == "NameConflict"
    assert "Service taken" in stalled["message"]
    assert operator.get("service", "taken") == before
    assert not operator.children("taken"), "nothing is made beside a foreign object"
    events = operator.get("events", "--field-selector", "reason=NameConflict")["items"]
    assert [each["involvedObject"]["name"] for each in events] == ["taken"]
    operator.kubectl("delete", "service", "taken")
    operator.kubectl("label", "fgd", "taken", "try=again")
    wait_until("children", lambda: has_all_children(operator, "taken"), seconds=20)
    wait_until(
        "no conflict",
        lambda: operator.condition("taken", "Stalled")["status"] == "False",
        seconds=20,
    )
    delete(operator, "taken")


def test_what_the_api_server_refuses_is_told_in_its_words(operator: OperatorProcess) -> None:
    operator.create("refused", nodeSelector={"not a label": "x"})
    stalled = wait_until(
        "the refusal",
        lambda: is_stalled(operator, "refused"),
        seconds=20,
    )
    assert stalled["reason"] == "ApplyRejected"
    assert "nodeSelector" in stalled["message"]
    operator.patch("refused", {"nodeSelector": None})
    wait_until("children", lambda: has_all_children(operator, "refused"), seconds=70)
    delete(operator, "refused")


def test_an_unknown_affinity_field_is_told_too(operator: OperatorProcess) -> None:
    operator.create("unknown", affinity={"nodeAffinity": {"bogus": 1}})
    stalled = wait_until(
        "the refusal",
        lambda: is_stalled(operator, "unknown"),
        seconds=20,
    )
    assert stalled["reason"] == "ApplyRejected"
    assert "bogus" in stalled["message"]
    delete(operator, "unknown")


def test_an_image_that_is_not_there_is_named(operator: OperatorProcess, chat: str) -> None:
    pull_failed_and_quiet(operator, chat)
    ready = operator.condition(chat, "Ready")
    assert ready["status"] == "False"
    assert "127.0.0.1:1/none:1" in ready["message"]
    assert operator.condition(chat, "Available")["reason"] == "NoReplicaReady"


def test_no_room_is_told_in_the_schedulers_words(operator: OperatorProcess) -> None:
    operator.create("huge", resources={"requests": {"cpu": "1000"}})
    blocked = wait_until(
        "the scheduler's word",
        lambda: operator.condition("huge", "CapacityBlocked"),
        seconds=30,
    )
    assert blocked["reason"] == "Unschedulable"
    assert "Insufficient cpu" in blocked["message"]
    delete(operator, "huge")
