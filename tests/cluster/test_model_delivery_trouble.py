"""What holds up a download is told, and outlived where it passes."""

import json
import time
from collections.abc import Iterator

import pytest
from cluster_access import wait_until
from delivery_questions import (
    ENGINE,
    LOCAL,
    WEIGHTS,
    create,
    delete,
    delivering_operator,
    is_ready,
    model_of,
    sent,
    set_token,
    wait_for_message,
    wait_until_delivered,
)
from hub_server import API, STALLED, TOKEN, HubServer, throttled
from operator_process import OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, hub: HubServer) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    with delivering_operator("fastgen-delivery-trouble", folder, hub, 18095) as running:
        yield running


def test_throttling_and_a_stall_are_told_and_outlived(
    operator: OperatorProcess, hub: HubServer
) -> None:
    hub.reset()
    hub.faults[API].append(throttled("8"))
    hub.faults[WEIGHTS[0]].append(STALLED)
    create(operator, "slow", {"cache": LOCAL})
    told = wait_for_message(operator, "slow", "throttled by", seconds=120)
    assert told["reason"] == "DownloadRetrying"
    assert model_of(operator, "slow")["phase"] == "Downloading"
    # It stands still until the silent connection is given up.
    wait_for_message(operator, "slow", "7.5 of 10.0 MB", seconds=120)
    wait_until_delivered(operator, "slow")
    assert sent(hub) < 1.2
    wait_until("Ready", lambda: is_ready(operator, "slow"), seconds=60)


@pytest.mark.slow
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
    delete(operator, "secretless", "classless", "claimless", "shelfless", wait=False)


@pytest.mark.slow
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
    delete(operator, "refused", wait=False)
