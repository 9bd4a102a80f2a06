"""What the operator says of what it cannot make, and what deletion leaves, on a real API server.

The images named here do not exist: what pods do is the business of test_operator_pods.
"""

import time

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
    operator.create("refused", runtimeClassName="Not_A_Name")
    stalled = wait_until(
        "the refusal",
        lambda: is_stalled(operator, "refused"),
        seconds=20,
    )
    assert stalled["reason"] == "ApplyRejected"
    assert "runtimeClassName" in stalled["message"]
    operator.patch("refused", {"runtimeClassName": None})
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


def test_deletion_needs_no_operator(operator: OperatorProcess) -> None:
    operator.create("gone")
    wait_until("children", lambda: has_all_children(operator, "gone"), seconds=20)
    operator.stop()
    operator.kubectl("delete", "fgd", "gone", "--wait", "--timeout=20s")
    wait_until("no children", lambda: not operator.children("gone"), seconds=60)
    selector = "fastgen.dev/deployment=gone"
    wait_until("no pods", lambda: not operator.get("pods", "-l", selector)["items"], seconds=60)


def test_a_foreground_deletion_brings_nothing_back(operator: OperatorProcess) -> None:
    operator.create("waiting")
    wait_until("children", lambda: has_all_children(operator, "waiting"), seconds=20)
    operator.kubectl("delete", "fgd", "waiting", "--cascade=foreground", "--timeout=60s")
    assert operator.find("fgd", "waiting") is None
    time.sleep(2)
    assert not operator.children("waiting")


def test_a_resource_made_again_at_once_gets_new_children(operator: OperatorProcess) -> None:
    operator.create("again")
    wait_until("children", lambda: has_all_children(operator, "again"), seconds=20)
    operator.kubectl("delete", "fgd", "again", "--wait")
    operator.create("again")
    uid = operator.get("fgd", "again")["metadata"]["uid"]

    def all_new() -> bool:
        children = operator.children("again").values()
        owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in children}
        return has_all_children(operator, "again") and owners == {uid}

    wait_until("children of the new one", all_new, seconds=60)
    delete(operator, "again")


def test_orphans_are_taken_back(operator: OperatorProcess) -> None:
    operator.create("orphaned")
    wait_until("children", lambda: has_all_children(operator, "orphaned"), seconds=20)
    uid = operator.get("deployment", "orphaned-replica")["metadata"]["uid"]
    operator.kubectl("delete", "fgd", "orphaned", "--cascade=orphan", "--wait")
    operator.create("orphaned")
    owner = operator.get("fgd", "orphaned")["metadata"]["uid"]
    wait_until(
        "taken back",
        lambda: [each["uid"] for each in operator.get("deployment", "orphaned-replica")[
            "metadata"].get("ownerReferences", ())] == [owner],
        seconds=60,
    )  # fmt: skip
    assert operator.get("deployment", "orphaned-replica")["metadata"]["uid"] == uid
    delete(operator, "orphaned")
