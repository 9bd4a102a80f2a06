"""Models on their way to the replicas, from a hub of the test's own that has all its moods."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoint_files import write_gguf
from cluster_access import wait_until
from hub_server import API, COMMIT, DAMAGED, STALLED, TOKEN, HubServer, serving_hub, throttled
from operator_process import OperatorProcess, operator_in
from tiny_model import write_tiny_model

from fastgen_devcluster import Cluster
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-delivery"
PORT = 18094
SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 64, "maxConcurrentRequests": 2}
SOURCE = "hf://test/tiny"
SECRET = {"name": "hf", "key": "token"}
SHARED = {
    "type": "PersistentVolumeClaim",
    "size": "1Gi",
    "storageClassName": "shared",
    "accessModes": ["ReadWriteMany"],
}
LOCAL = {"type": "PersistentVolumeClaim", "size": "1Gi", "retentionPolicy": "Delete"}
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A private repository of some megabytes, where pods can reach it."""
    host = Cluster.current().host_address
    if host is None:
        pytest.skip("only the development cluster reaches this machine")
    folder = write_tiny_model(
        tmp_path_factory.mktemp("hub") / "tiny",
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
    )
    with serving_hub(folder, host=host, known_as=host) as server:
        server.is_private = True
        yield server


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, hub: HubServer) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, PORT) as running:
        set_token(running, TOKEN)
        start(running, hub)
        yield running


def start(operator: OperatorProcess, hub: HubServer) -> None:
    """Its downloads give a silent connection up after some seconds."""
    patience = {"FASTGEN_DOWNLOAD_STALL_SECONDS": "8"}
    settings = {"FASTGEN_DOWNLOAD_ENVIRONMENT": json.dumps(patience)}
    operator.start({"FASTGEN_HUB_ENDPOINT": hub.url} | settings)


def set_token(operator: OperatorProcess, token: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET["name"]},
              "stringData": {SECRET["key"]: token}}  # fmt: skip
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(secret))


def create(operator: OperatorProcess, name: str, model: dict[str, Any], replicas: int = 0) -> None:
    """A FastGenDeployment of the hub's model, by default without replicas."""
    mode = {"mode": "Disabled", "maxReplicas": max(1, replicas)}
    operator.create(
        name,
        model={"source": SOURCE, "tokenSecretRef": SECRET} | model,
        replicas=replicas,
        resources=SMALL,
        engine=ENGINE,
        scaling=mode,
    )


def delete(operator: OperatorProcess, *names: str) -> None:
    operator.kubectl("delete", "fgd", *names, "--wait", "--cascade=foreground")


def ready(operator: OperatorProcess, name: str) -> dict[str, Any]:
    return operator.condition(name, "Ready")


def is_ready(operator: OperatorProcess, name: str) -> bool:
    found = operator.get("fgd", name)
    conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
    return (
        conditions.get("Ready", {}).get("status") == "True"
        and found["status"]["observedGeneration"] == found["metadata"]["generation"]
    )


def model_of(operator: OperatorProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = operator.get("fgd", name).get("status", {}).get("model", {})
    return found


def pods(operator: OperatorProcess, name: str, component: str = "replica") -> dict[str, Any]:
    """Pods that are not going away, by name."""
    selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component={component}"
    found = operator.get("pods", "-l", selector)["items"]
    return {each["metadata"]["name"]: each for each in found
            if "deletionTimestamp" not in each["metadata"]}  # fmt: skip


def wait_for_message(operator: OperatorProcess, name: str, words: str, seconds: float) -> Any:
    return wait_until(
        f"{words!r} in the condition Ready of {name}",
        lambda: words in ready(operator, name).get("message", "") and ready(operator, name),
        seconds=seconds,
    )


def wait_until_delivered(operator: OperatorProcess, name: str) -> None:
    wait_until(
        f"the model of {name} is there",
        lambda: model_of(operator, name).get("downloadedPercent") == 100,
        seconds=60,
    )


def sent(hub: HubServer) -> float:
    """How many times the weights were sent."""
    size = sum((hub.folder / name).stat().st_size for name in WEIGHTS)
    return sum(hub.sent_bytes[name] for name in WEIGHTS) / size


@pytest.fixture(scope="module")
def chat(operator: OperatorProcess, hub: HubServer) -> OperatorProcess:
    """A FastGenDeployment `chat` whose two replicas share what was downloaded once.

    On the way there its download was killed at about half.
    """
    hub.bytes_per_second = sum((hub.folder / name).stat().st_size for name in WEIGHTS) // 20
    create(operator, "chat", {"cache": SHARED}, replicas=2)
    wait_until(
        "about half of the model",
        lambda: model_of(operator, "chat").get("downloadedPercent", 0) >= 30,
        seconds=90,
    )
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
    chat.kubectl("scale", "fgd", "chat", "--replicas=3")
    wait_until("three replicas", lambda: len(pods(chat, "chat")) == 3, seconds=30)
    wait_until("Ready", lambda: is_ready(chat, "chat"), seconds=90)
    assert hub.requests == []
    chat.kubectl("scale", "fgd", "chat", "--replicas=1")
    wait_until("one replica", lambda: len(pods(chat, "chat")) == 1, seconds=120)


def test_replicas_cannot_write_what_they_share(chat: OperatorProcess) -> None:
    name = next(iter(pods(chat, "chat")))
    program = "import os; print(os.access('/models/huggingface', os.W_OK))"
    assert chat.kubectl("exec", name, "--", "python3", "-c", program).strip() == "False"


def test_the_token_is_nowhere_to_be_read(chat: OperatorProcess) -> None:
    kinds = "fgd,pods,jobs,deployments,configmaps,events,events.v1.events.k8s.io"
    writers = [*pods(chat, "chat", "download"), *pods(chat, "chat")]
    logs = [chat.kubectl("logs", name, "--all-containers") for name in writers]
    seen = [chat.kubectl("get", kinds, "-o", "yaml"), chat.log.read_text(), *logs]
    assert len(seen) >= 4
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
    chat.kubectl("scale", "fgd", "chat", "--replicas=2")
    wait_until("two replicas", lambda: len(pods(chat, "chat")) == 2, seconds=30)
    chat.kubectl("scale", "fgd", "chat", "--replicas=1")
    wait_until("one replica", lambda: set(pods(chat, "chat")) == before, seconds=120)

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
    delete(chat, "shelf")
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


def test_throttling_and_a_stall_are_told_and_outlived(
    operator: OperatorProcess, hub: HubServer
) -> None:
    hub.reset()
    hub.faults[API].append(throttled("8"))
    hub.faults[WEIGHTS[0]].append(STALLED)
    create(operator, "slow", {"cache": LOCAL})
    told = wait_for_message(operator, "slow", "throttled by", seconds=120)
    assert told["reason"] == "Downloading"
    assert model_of(operator, "slow")["phase"] == "Downloading"
    # It stands still until the silent connection is given up.
    wait_for_message(operator, "slow", "7.5 of 10.0 MB", seconds=120)
    wait_until_delivered(operator, "slow")
    assert sent(hub) < 1.2
    assert ready(operator, "slow")["status"] == "True"


def test_what_a_claim_can_never_become_is_told_without_a_hot_loop(
    operator: OperatorProcess, hub: HubServer
) -> None:
    if operator.find("fgd", "slow") is None:
        create(operator, "slow", {"cache": LOCAL})
    wait_until_delivered(operator, "slow")
    operator.patch("slow", {"model": {"cache": {"storageClassName": "shared"}}})
    stalled = wait_until(
        "Stalled",
        lambda: (
            operator.condition("slow", "Stalled").get("status") == "True"
            and operator.condition("slow", "Stalled")
        ),
        seconds=30,
    )
    assert stalled["reason"] == "ClaimImmutable"
    assert "has the storage class local-path" in stalled["message"]
    since = time.time()
    time.sleep(5)
    assert operator.writes(since) == []
    operator.patch("slow", {"model": {"cache": {"storageClassName": None, "size": "2Gi"}}})
    told = wait_until(
        "the API server's words",
        lambda: (
            operator.condition("slow", "Stalled").get("reason") == "ApplyRejected"
            and operator.condition("slow", "Stalled")
        ),
        seconds=30,
    )
    assert "resize" in told["message"]
    operator.patch("slow", {"model": {"cache": {"size": "1Gi"}}})
    wait_until("Ready", lambda: is_ready(operator, "slow"), seconds=30)
    delete(operator, "slow")
    wait_until("no claim", lambda: operator.find("pvc", "slow-models") is None, seconds=120)


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
    operator.kubectl("scale", "fgd", "pods", "--replicas=2")
    wait_until("two replicas", lambda: len(pods(operator, "pods")) == 2, seconds=30)
    wait_until("Ready", lambda: is_ready(operator, "pods"), seconds=90)
    assert 2 <= sent(hub) < 2.4
    delete(operator, "pods")


def test_downloads_that_cannot_start_say_why(operator: OperatorProcess, hub: HubServer) -> None:
    mine = {"type": "PersistentVolumeClaim", "claimName": "mine"}
    nowhere = LOCAL | {"storageClassName": "nowhere"}
    lost = {"tokenSecretRef": {"name": "lost", "key": "token"}}
    create(operator, "secretless", {"cache": LOCAL} | lost)
    create(operator, "classless", {"cache": nowhere})
    create(operator, "claimless", {"cache": mine})
    shelf = {"source": "pvc://nothing/model.gguf"}
    operator.create("shelfless", model=shelf, replicas=0, engine=ENGINE)
    secretless = wait_for_message(operator, "secretless", 'secret "lost" not found', seconds=120)
    assert secretless["reason"] == "CreateContainerConfigError"
    classless = wait_for_message(operator, "classless", "is of storage class nowhere", seconds=120)
    assert classless["reason"] == "ClaimPending"
    claimless = wait_for_message(operator, "claimless", "Claim mine, which does not", seconds=120)
    assert claimless["reason"] == "ClaimNotFound"
    shelfless = wait_for_message(operator, "shelfless", "Claim nothing, which", seconds=120)
    assert shelfless["reason"] == "ClaimNotFound"
    for name in ("secretless", "classless", "claimless", "shelfless"):
        assert operator.condition(name, "Stalled")["status"] == "False"
        assert operator.condition(name, "ModelReady")["status"] == "False"
    # Whoever makes what is missing needs to do no more.
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"},
             "spec": {"accessModes": ["ReadWriteOnce"],
                      "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    operator.kubectl("create", "-f", "-", stdin=json.dumps(claim))
    wait_until_delivered(operator, "claimless")
    delete(operator, "secretless", "classless", "claimless", "shelfless")


def test_a_refused_token_is_told_and_tried_again_when_the_job_is_deleted(
    operator: OperatorProcess, hub: HubServer
) -> None:
    set_token(operator, "hf_another")
    try:
        create(operator, "refused", {"cache": LOCAL})
        told = wait_for_message(operator, "refused", "is deleted", seconds=120)
        assert told["reason"] == "AccessDenied"
        assert operator.condition("refused", "Stalled")["status"] == "True"
    finally:
        set_token(operator, TOKEN)
    (job,) = operator.get("jobs", "-l", "fastgen.dev/deployment=refused")["items"]
    assert job["metadata"]["name"] in told["message"]
    operator.kubectl("delete", "job", job["metadata"]["name"])
    wait_until_delivered(operator, "refused")
    assert operator.condition("refused", "Stalled")["status"] == "False"
    delete(operator, "refused")
