"""Rollouts of real replicas: with room, without, with a bad image, and changed on the way."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import wait_until
from commands import Commands
from gpus import gpus
from operator_process import OperatorProcess, operator_in
from ready_pods import ready_pods

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-rollout"
SLOT = "example.com/rollout-slot"
"""Stands for a GPU, so that other tests keep theirs."""
RESOURCES = {
    "requests": {"cpu": "100m", "memory": "512Mi", SLOT: "1"},
    "limits": {"memory": "1536Mi", SLOT: "1"},
}
ENGINE = {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4}

BROKEN_PACKAGE = "raise ImportError('this package is torn')"
WITH_BROKEN_PACKAGE = {
    "volumes": [{"name": "broken", "configMap": {"name": "broken"}}],
    "containers": [
        {
            "name": "runtime",
            "env": [{"name": "PYTHONPATH", "value": "/broken"}],
            "volumeMounts": [{"name": "broken", "mountPath": "/broken"}],
        }
    ],
}
"""A replica that ends at once, and whose log alone tells why."""


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, cluster: Commands, definition: object
) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with (
        gpus(cluster, {0: 2}, SLOT),
        operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18092) as operator,
    ):
        operator.start()
        operator.create("chat", resources=RESOURCES, engine=ENGINE)
        yield operator


@pytest.fixture
def chat(installed: OperatorProcess) -> OperatorProcess:
    """An operator with a FastGenDeployment `chat` that serves, and two places for replicas."""
    wait_until("Ready", lambda: is_settled(installed), seconds=120)
    return installed


def is_settled(operator: OperatorProcess) -> bool:
    found = operator.get("fgd", "chat")
    status = found.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    return (
        conditions.get("Ready") == "True"
        and status["observedGeneration"] == found["metadata"]["generation"]
    )


def pods(operator: OperatorProcess) -> list[Any]:
    """Replica pods that are not going away."""
    selector = "fastgen.dev/deployment=chat,app.kubernetes.io/component=replica"
    found = operator.get("pods", "-l", selector)["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def names_of(operator: OperatorProcess) -> set[str]:
    return {each["metadata"]["name"] for each in pods(operator)}


def argument(pod: Any, flag: str) -> str:
    arguments = pod["spec"]["containers"][0]["args"]
    return next(str(each).partition("=")[2] for each in arguments if each.startswith(f"{flag}="))


def edit(operator: OperatorProcess, max_model_length: int) -> None:
    operator.patch("chat", {"engine": {"maxModelLength": max_model_length}})


def strategy(operator: OperatorProcess) -> Any:
    return operator.get("deployment", "chat-replica")["spec"]["strategy"]["rollingUpdate"]


def blocked(operator: OperatorProcess, reason: str, seconds: float = 60) -> str:
    """The message of RolloutBlocked, once its reason is this."""

    def message() -> str:
        found = operator.condition("chat", "RolloutBlocked")
        return str(found["message"]) if found.get("reason") == reason else ""

    return str(wait_until(f"RolloutBlocked {reason}", message, seconds=seconds))


def test_three_edits_in_ten_seconds_end_in_the_last(
    chat: OperatorProcess, cluster: Commands
) -> None:
    with ready_pods(cluster, NAMESPACE, "chat", present=1) as seen:
        for length in (250, 251, 252):
            edit(chat, length)
            time.sleep(3)
        wait_until("Ready", lambda: is_settled(chat), seconds=120)
    assert seen.fewest >= 1
    (pod,) = pods(chat)
    assert argument(pod, "--max-model-length") == "252"
    assert len(seen.forms) <= 3, "a form in between may have served, but not all of them"


def test_a_revert_in_mid_rollout_keeps_what_serves(
    chat: OperatorProcess, cluster: Commands
) -> None:
    before = names_of(chat)
    with ready_pods(cluster, NAMESPACE, "chat", present=1) as seen:
        edit(chat, 300)
        wait_until("the new pod", lambda: len(pods(chat)) == 2, seconds=30)
        edit(chat, 252)
        wait_until("Ready", lambda: is_settled(chat), seconds=60)
    assert seen.fewest >= 1
    assert names_of(chat) == before


def test_what_cannot_start_leaves_the_old_replica_serving(chat: OperatorProcess) -> None:
    """An image that is not there, a process that ends at once, and one that is killed."""
    before = names_of(chat)
    chat.patch("chat", {"image": "127.0.0.1:1/none:1"})
    message = blocked(chat, "ImagePullBackOff")
    assert "an earlier replica serves on" in message
    assert "image 127.0.0.1:1/none:1 cannot be pulled" in message
    assert "Correct spec.image" in message
    chat.kubectl("create", "configmap", "broken", f"--from-literal=msgspec.py={BROKEN_PACKAGE}")
    chat.patch("chat", {"image": None, "podTemplate": {"spec": WITH_BROKEN_PACKAGE}})
    message = blocked(chat, "CrashLoopBackOff")
    assert "its last words: ImportError: this package is torn" in message
    assert f"kubectl -n {NAMESPACE} logs chat-replica-" in message
    assert chat.condition("chat", "Available")["status"] == "True"
    assert chat.condition("chat", "Ready")["reason"] == "CrashLoopBackOff"
    reasons = {each["reason"] for each in chat.get("events")["items"]
               if each["involvedObject"]["kind"] == "FastGenDeployment"}  # fmt: skip
    assert {"ImagePullBackOff", "CrashLoopBackOff"} <= reasons
    little = {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}}
    chat.patch("chat", {"podTemplate": None, "resources": little})
    message = blocked(chat, "OOMKilled")
    assert "took more memory than its limit (64Mi). Raise spec.resources.limits.memory" in message
    chat.patch("chat", {"resources": RESOURCES})
    wait_until("Ready", lambda: is_settled(chat), seconds=60)
    assert names_of(chat) == before
    assert not chat.condition("chat", "RolloutBlocked")


def test_without_room_surge_waits_and_auto_goes_on_in_place(
    chat: OperatorProcess, cluster: Commands
) -> None:
    before = names_of(chat)
    with gpus(cluster, {0: 1}, SLOT):
        # Nothing is stopped for a replica that might not fit in its place.
        chat.patch("chat", {"resources": slots(2)})
        message = blocked(chat, "NoRoomToSurge")
        assert "Auto waits for it, an earlier replica serves on, because no node is lar" in message
        chat.patch("chat", {"resources": slots(1), "rollout": {"strategy": "Surge"}})
        edit(chat, 400)
        wait_until("Surge", lambda: "Surge waits" in blocked(chat, "NoRoomToSurge"), seconds=60)
        assert f"Insufficient {SLOT}" in blocked(chat, "NoRoomToSurge")
        assert f"Insufficient {SLOT}" in chat.condition("chat", "CapacityBlocked")["message"]
        assert chat.condition("chat", "Ready")["reason"] == "NoRoomToSurge"
        assert chat.condition("chat", "Available")["status"] == "True"
        assert before <= names_of(chat)
        chat.patch("chat", {"rollout": {"strategy": "Auto"}})
        wait_until("in place", lambda: strategy(chat)["maxSurge"] == 0, seconds=45)
        message = blocked(chat, "NoRoomToSurge")
        assert "The rollout goes on in place" in message
        assert "nothing serves from then until the new one has loaded" in message
        wait_until("Ready", lambda: is_settled(chat), seconds=120)
    (pod,) = pods(chat)
    assert argument(pod, "--max-model-length") == "400"
    assert strategy(chat) == {"maxSurge": 1, "maxUnavailable": 0}
    assert not chat.condition("chat", "RolloutBlocked")
    assert not chat.condition("chat", "CapacityBlocked")


def slots(count: int) -> dict[str, Any]:
    return {"requests": {SLOT: str(count)}, "limits": {SLOT: str(count)}}
