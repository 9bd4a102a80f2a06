"""The operator and its pods: a served model, one that is not there, and an operator upgrade."""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in

from fastgen_devcluster.cluster import PROMETHEUS_IN_CLUSTER
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-operator-pods"
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4}
MODEL = {"source": "file:///models/SmolLM2-135M-Instruct.gguf"}
NEXT_IMAGES = {"runtime": "127.0.0.1:1/next:2", "control": "127.0.0.1:1/next:2"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18082) as operator:
        operator.start()
        yield operator


@pytest.fixture
def chat(installed: OperatorProcess) -> OperatorProcess:
    """An operator with a FastGenDeployment `chat` that serves with one replica."""
    if installed.find("fgd", "chat") is None:
        installed.create("chat", resources=SMALL, engine=ENGINE)
    wait_until("Ready", lambda: is_ready(installed, "chat"), seconds=180)
    return installed


def is_ready(operator: OperatorProcess, name: str) -> bool:
    found = operator.get("fgd", name)
    conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
    return (
        conditions.get("Ready", {}).get("status") == "True"
        and found["status"]["observedGeneration"] == found["metadata"]["generation"]
    )


def pods(operator: OperatorProcess, component: str = "replica") -> dict[str, Any]:
    """Pods that are not going away, by uid."""
    selector = f"fastgen.dev/deployment=chat,app.kubernetes.io/component={component}"
    found = operator.get("pods", "-l", selector)["items"]
    return {each["metadata"]["uid"]: each for each in found
            if "deletionTimestamp" not in each["metadata"]}  # fmt: skip


def image_of(pod: Any) -> Any:
    return pod["spec"]["containers"][0]["image"]


def test_a_served_model_is_ready_and_answers(chat: OperatorProcess) -> None:
    status = chat.get("fgd", "chat")["status"]
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions["Available"] == conditions["ModelReady"] == "True"
    assert conditions["Stalled"] == conditions["Reconciling"] == "False"
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    assert status["model"]["phase"] == "Ready"
    address = chat.get("service", "chat")["spec"]["clusterIP"]
    answer = httpx2.post(
        f"http://{address}/v1/completions",
        json={"model": "chat", "prompt": "Hello", "max_tokens": 4},
        timeout=60,
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]


def test_a_serving_deployment_is_left_in_peace(chat: OperatorProcess) -> None:
    time.sleep(5)
    since = time.time()
    chat.kubectl("label", "--overwrite", "fgd", "chat", "touched=yes")
    time.sleep(15)
    assert chat.writes_of_all(since) == []


def test_an_autoscaled_deployment_in_steady_state_writes_nothing(
    installed: OperatorProcess,
) -> None:
    """Two balancers, the autoscaler in command, Prometheus read: as most will run it."""
    installed.create(
        "steady",
        resources=SMALL,
        engine=ENGINE,
        slo={"timeToFirstToken": {"milliseconds": 5000}},
        scaling={
            "mode": "Auto",
            "minReplicas": 1,
            "maxReplicas": 2,
            "prometheus": {"url": PROMETHEUS_IN_CLUSTER},
        },
        balancer={"replicas": 2},
    )
    try:
        wait_until("Ready", lambda: is_ready(installed, "steady"), seconds=180)
        active = wait_until(
            "the autoscaler's word",
            lambda: installed.condition("steady", "ScalingActive"),
            seconds=90,
        )
        assert active["status"] == "True", active
        wait_until(
            "quiet", lambda: not installed.writes_of_all(time.time() - 10), seconds=120, pause=2
        )
        since = time.time()
        time.sleep(20)
        assert installed.writes_of_all(since) == []
        leases = installed.leases_written(since)
        assert leases, "the leader renews its Lease, so the log was read"
        cold_start = installed.get("fgd", "steady")["status"]["coldStartSeconds"]
        assert 1 <= cold_start < 180
    finally:
        installed.kubectl("delete", "fgd", "steady", "--wait")


def test_the_replicas_have_no_rights_and_run_confined(chat: OperatorProcess) -> None:
    (pod,) = pods(chat).values()
    volumes = [each["name"] for each in pod["spec"]["volumes"]]
    assert not any("token" in name or "kube-api-access" in name for name in volumes)
    name = pod["metadata"]["name"]
    done = chat.kubectl("exec", name, "--", "python3", "-c",
                        "import os; print(os.getuid()); open('/tmp/x', 'w')")  # fmt: skip
    assert done.strip() == "65532"
    with pytest.raises(CommandError, match="Read-only"):
        chat.kubectl("exec", name, "--", "python3", "-c", "open('/opt/x', 'w')")


def test_a_new_slo_reaches_the_running_replica(chat: OperatorProcess) -> None:
    before = set(pods(chat))
    chat.patch("chat", {"slo": {"timePerOutputToken": {"milliseconds": 12345}}})
    (pod,) = pods(chat).values()
    read = ("exec", pod["metadata"]["name"], "--", "python3", "-c",
            "print(open('/etc/fastgen/slo.json').read())")  # fmt: skip
    # The kubelet looks after mounted ConfigMaps about once a minute.
    wait_until("the new SLO", lambda: "12345" in chat.kubectl(*read), seconds=120, pause=2)
    assert set(pods(chat)) == before


def test_a_model_that_is_not_there_is_named_and_the_old_one_serves_on(
    chat: OperatorProcess,
) -> None:
    before = set(pods(chat))
    chat.patch("chat", {"model": {"source": "file:///models/missing.gguf"}})
    missing = wait_until(
        "the reason",
        lambda: (
            chat.condition("chat", "ModelReady").get("status") == "False"
            and chat.condition("chat", "ModelReady")
        ),
        seconds=90,
    )
    assert missing["reason"] == "ModelNotFound"
    assert "/models/missing.gguf" in missing["message"]
    assert chat.get("fgd", "chat")["status"]["model"]["phase"] == "Failed"
    assert chat.condition("chat", "Ready")["reason"] == "ModelNotFound"
    assert chat.condition("chat", "Available")["status"] == "True"
    assert before <= set(pods(chat))
    events = chat.get("events", "--field-selector", "reason=ModelNotFound")["items"]
    assert len(events) == 1
    chat.patch("chat", {"model": MODEL})
    wait_until("Ready", lambda: is_ready(chat, "chat"), seconds=120)
    assert set(pods(chat)) == before, "the way back needs no new pod"


def test_an_operator_upgrade_restarts_nothing(chat: OperatorProcess) -> None:
    built = dict(chat.images)
    before = {**pods(chat), **pods(chat, "balancer")}
    chat.stop()
    chat.start(**NEXT_IMAGES)
    waiting = wait_until(
        "UpgradeAvailable", lambda: chat.condition("chat", "UpgradeAvailable"), seconds=30
    )
    assert waiting["status"] == "True"
    assert NEXT_IMAGES["runtime"] in waiting["message"]
    # Scaling edits the resource, but declares nothing about pods.
    chat.kubectl("scale", "fgd", "chat", "--replicas=2")
    wait_until("two replicas", lambda: len(pods(chat)) == 2, seconds=30)
    assert {image_of(pod) for pod in pods(chat).values()} == {built["runtime"]}
    assert before.keys() <= {**pods(chat), **pods(chat, "balancer")}.keys()
    assert chat.get("fgd", "chat")["status"]["runtimeImage"] == built["runtime"]
    chat.kubectl("scale", "fgd", "chat", "--replicas=1")

    # An edit of what pods are made from moves them to the new operator's image.
    chat.patch("chat", {"engine": ENGINE | {"maxModelLength": 256}})
    wait_until(
        "the new image",
        lambda: chat.get("fgd", "chat")["status"]["runtimeImage"] == NEXT_IMAGES["runtime"],
        seconds=30,
    )
    wait_until(
        "its absence told",
        lambda: chat.condition("chat", "Ready").get("reason") == "ImagePullBackOff",
        seconds=60,
    )
    assert not chat.condition("chat", "UpgradeAvailable")
    assert chat.condition("chat", "Available")["status"] == "True"

    # Pods of that image never ran: a repaired operator replaces them without an edit.
    chat.stop()
    chat.start()
    wait_until("Ready", lambda: is_ready(chat, "chat"), seconds=120)
    assert {image_of(pod) for pod in pods(chat).values()} == {built["runtime"]}
