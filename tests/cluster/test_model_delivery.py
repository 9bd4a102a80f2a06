"""Models on their way to the replicas, from a hub of the test's own."""

import json
import time
from collections.abc import Iterator

import pytest
from checkpoint_files import write_gguf
from cluster_access import wait_until
from delivery_questions import (
    ENGINE,
    SMALL,
    SOURCE,
    WEIGHTS,
    create,
    delete,
    delivering_operator,
    is_ready,
    model_of,
    pods,
    scale,
    sent,
    start,
    wait_until_delivered,
)
from hub_server import COMMIT, DAMAGED, TOKEN, HubServer
from operator_process import OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SHARED = {
    "type": "PersistentVolumeClaim",
    "size": "1Gi",
    "storageClassName": "shared",
    "accessModes": ["ReadWriteMany"],
}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, hub: HubServer) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    with delivering_operator("fastgen-delivery", folder, hub, 18094) as running:
        yield running


@pytest.fixture(scope="module")
def chat(operator: OperatorProcess, hub: HubServer) -> OperatorProcess:
    """A FastGenDeployment `chat` whose two replicas share what was downloaded once.

    On the way there its download was killed at about half.
    """
    size = sum((hub.folder / name).stat().st_size for name in WEIGHTS)
    hub.bytes_per_second = size // 20
    create(operator, "chat", {"cache": SHARED}, replicas=2)
    wait_until(
        "about half of the model",
        lambda: model_of(operator, "chat").get("downloadedPercent", 0) >= 30,
        seconds=90,
    )
    hub.bytes_per_second = size // 500  # It waits for us.
    status = operator.get("fgd", "chat")["status"]
    assert status["model"]["phase"] == "Downloading"
    assert status["model"]["revision"] == COMMIT
    assert status["model"]["downloadedPercent"] < 100
    for kind in ("Ready", "ModelReady"):
        told = operator.condition("chat", kind)
        assert (told["status"], told["reason"]) == ("False", "Downloading")
        assert " of " in told["message"]
        assert told["message"].endswith("MB")
    assert operator.condition("chat", "Reconciling")["status"] == "True"
    assert operator.find("deployment", "chat-replica") is None
    assert operator.find("deployment", "chat-balancer") is not None
    (first,) = pods(operator, "chat", "download")
    operator.kubectl("delete", "pod", first, "--grace-period=1")
    assert model_of(operator, "chat")["phase"] == "Downloading"
    hub.bytes_per_second = None
    wait_until("Ready", lambda: is_ready(operator, "chat"), seconds=180)
    return operator


def test_one_download_serves_all_replicas_and_outlives_its_pod(
    chat: OperatorProcess, hub: HubServer
) -> None:
    assert len(pods(chat, "chat")) == 2
    assert 1 <= sent(hub) < 1.2, "what had come was kept"
    size = sum(path.stat().st_size for path in hub.folder.iterdir())
    model = model_of(chat, "chat")
    assert (model["phase"], model["revision"], model["downloadedPercent"]) == (
        "Ready", COMMIT, 100,
    )  # fmt: skip
    assert 0.9 * size < model["sizeBytes"] <= size
    hub.reset()
    scale(chat, "chat", 3)
    wait_until("Ready", lambda: is_ready(chat, "chat"), seconds=120)
    assert hub.requests == []
    scale(chat, "chat", 1)


def test_replicas_cannot_write_what_they_share(chat: OperatorProcess) -> None:
    name = next(iter(pods(chat, "chat")))
    program = "import os; print(os.access('/models/huggingface', os.W_OK))"
    assert chat.kubectl("exec", name, "--", "python3", "-c", program).strip() == "False"


def test_the_token_is_nowhere_to_be_read(chat: OperatorProcess) -> None:
    kinds = "fgd,pods,jobs,deployments,configmaps,events,events.v1.events.k8s.io"
    writers = [*pods(chat, "chat", "download"), *pods(chat, "chat")]
    logs = [chat.kubectl("logs", name, "--all-containers") for name in writers]
    seen = [chat.kubectl("get", kinds, "-o", "yaml"), chat.log.read_text(), *logs]
    assert pods(chat, "chat", "download"), "the log of the download was read"
    for text in seen:
        assert TOKEN not in text


def test_a_lost_report_and_an_operators_restart_move_nothing(
    chat: OperatorProcess, hub: HubServer
) -> None:
    before, model = set(pods(chat, "chat")), model_of(chat, "chat")
    hub.reset()
    chat.kubectl("delete", "configmap", "chat-model")
    chat.stop()
    chat.kubectl("delete", "job", "-l", "fastgen.dev/deployment=chat")
    start(chat, hub)
    wait_until("the ConfigMap", lambda: chat.find("configmap", "chat-model"), seconds=30)
    wait_until("quiet", lambda: not chat.writes(time.time() - 5), seconds=60, pause=1)
    assert set(pods(chat, "chat")) == before
    assert (model_of(chat, "chat"), hub.requests) == (model, [])


def test_the_old_model_serves_on_while_the_next_one_fails_and_the_way_back_is_short(
    chat: OperatorProcess, hub: HubServer
) -> None:
    scale(chat, "chat", 1)
    before = set(pods(chat, "chat"))
    write_gguf(hub.folder / "lie.gguf")
    hub.always["lie.gguf"] = DAMAGED
    chat.patch("chat", {"model": {"source": f"{SOURCE}/lie.gguf"}})
    stalled = wait_until(
        "Stalled",
        lambda: (
            chat.condition("chat", "Stalled").get("status") == "True"
            and chat.condition("chat", "Stalled")
        ),
        seconds=120,
    )
    model_ready = chat.condition("chat", "ModelReady")
    assert stalled["reason"] == model_ready["reason"] == "ChecksumMismatch"
    assert model_ready["status"] == "False"
    assert "lie.gguf" in stalled["message"]
    assert model_of(chat, "chat")["phase"] == "Failed"
    assert chat.condition("chat", "Available")["status"] == "True"
    assert chat.condition("chat", "Reconciling")["status"] == "False"
    events = chat.get("events", "--field-selector", f"reason={stalled['reason']}")["items"]
    assert len(events) == 1
    # Scaling goes on meanwhile, with the model that serves.
    scale(chat, "chat", 2)
    scale(chat, "chat", 1)
    assert set(pods(chat, "chat")) == before

    hub.reset()
    chat.patch("chat", {"model": {"source": SOURCE}})
    wait_until("Ready", lambda: is_ready(chat, "chat"), seconds=30)
    assert set(pods(chat, "chat")) == before
    assert hub.requests == []
    assert model_of(chat, "chat")["revision"] == COMMIT
    wait_until(
        "the failed model's Job goes with it",
        lambda: not chat.get("jobs", "-l", "fastgen.dev/deployment=chat")["items"],
        seconds=30,
    )


def test_a_claim_of_the_users_is_served_as_it_is(chat: OperatorProcess, hub: HubServer) -> None:
    hub.reset()
    path = f"huggingface/hub/models--test--tiny/snapshots/{COMMIT}"
    chat.kubectl("create", "-f", "-", stdin=json.dumps({
        "apiVersion": "fastgen.dev/v1alpha1",
        "kind": "FastGenDeployment",
        "metadata": {"name": "shelf"},
        "spec": {"model": {"source": f"pvc://chat-models/{path}"}, "engine": ENGINE,
                 "resources": SMALL, "scaling": {"mode": "Disabled"}, "balancer": {"replicas": 1}},
    }))  # fmt: skip
    wait_until("Ready", lambda: is_ready(chat, "shelf"), seconds=90)
    assert hub.requests == []
    assert not chat.get("jobs", "-l", "fastgen.dev/deployment=shelf")["items"]
    delete(chat, "shelf", wait=False)
    assert chat.find("pvc", "chat-models") is not None


def test_a_retained_cache_is_taken_back_by_the_next_of_its_name(
    chat: OperatorProcess, hub: HubServer
) -> None:
    uid = chat.get("pvc", "chat-models")["metadata"]["uid"]
    delete(chat, "chat")
    assert chat.get("pvc", "chat-models")["metadata"]["uid"] == uid
    hub.reset()
    create(chat, "chat", {"cache": SHARED})
    wait_until_delivered(chat, "chat")
    assert sent(hub) == 0, "the weights were there"
    # Without them the same commit comes again.
    chat.kubectl("delete", "pvc", "chat-models", "--wait")
    wait_until("the weights again", lambda: sent(hub) >= 1, seconds=120)
    wait_until_delivered(chat, "chat")
    assert sent(hub) < 1.2
    # Another policy works both ways.
    for policy, is_owned in (("Delete", True), ("Retain", False), ("Delete", True)):
        chat.patch("chat", {"model": {"cache": {"retentionPolicy": policy}}})
        wait_until(
            f"the claim follows {policy}",
            lambda wanted=is_owned: (
                bool(chat.get("pvc", "chat-models")["metadata"].get("ownerReferences")) == wanted
            ),
            seconds=20,
        )
    delete(chat, "chat")
    wait_until("no claim", lambda: chat.find("pvc", "chat-models") is None, seconds=120)


@pytest.mark.slow
def test_without_a_cache_all_pods_download_the_same_commit(
    operator: OperatorProcess, hub: HubServer
) -> None:
    hub.reset()
    create(operator, "pods", {"revision": "main"}, replicas=1)
    wait_until("Ready", lambda: is_ready(operator, "pods"), seconds=120)
    (pod,) = pods(operator, "pods").values()
    (download,) = [each for each in pod["spec"]["initContainers"] if each["name"] == "download"]
    assert f"--revision={COMMIT}" in download["args"]
    assert 1 <= sent(hub) < 1.2, "the Job only resolved it"
    model = model_of(operator, "pods")
    assert (model["revision"], model["phase"]) == (COMMIT, "Ready")
    scale(operator, "pods", 2)
    wait_until("Ready", lambda: is_ready(operator, "pods"), seconds=120)
    assert 2 <= sent(hub) < 2.4
    delete(operator, "pods", wait=False)
