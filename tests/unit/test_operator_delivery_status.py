"""What a status says while a model is on its way."""

from typing import Any

import pytest
from observed_downloads import (
    CACHED,
    COMMIT,
    GIGABYTE,
    IN_PODS,
    claim,
    delivered,
    downloading,
    job,
    pod,
    read,
    report,
    seen,
)
from observed_objects import LATER, NOW, OWNER, conditions, deployment, message

from fastgen_api.spec import Model, Spec
from fastgen_operator.observed import Observed
from fastgen_operator.situation import Outcome
from fastgen_operator.status import notices_of, same_status, status_of

SERVING = deployment("chat-replica", 2)
BALANCER = deployment("chat-balancer", 2)
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "ReplicaSet has timed out."}  # fmt: skip
REPORT = report(state="Failed", reason="AccessDenied", message="the hub wants a token")
FAILED = (job(failed="exit code 1"), claim(), REPORT)


def status(
    *objects: Any, spec: Spec = CACHED, pods: Any = (), previous: dict[str, Any] | None = None
) -> dict[str, Any]:
    found = seen(BALANCER, *objects, pods=pods)
    return tell(found, spec, previous)


def tell(found: Observed, spec: Spec, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    before = previous or {}
    outcome = Outcome(delivery=read(spec, found, previous=before))
    return status_of(OWNER, found, NOW, before, outcome)


def on_its_way(gigabytes: float, *more: Any, previous: dict[str, Any] | None = None) -> Any:
    return status(job(), claim(), downloading(gigabytes), *more, pods=(pod(),), previous=previous)


def test_a_download_is_told_where_people_look() -> None:
    found = on_its_way(3.2)
    assert conditions(found) == {
        "Ready": ("False", "Downloading"),
        "Reconciling": ("True", "Downloading"),
        "Stalled": ("False", "NotStalled"),
        "Available": ("False", "NoReplicaReady"),
        "ModelReady": ("False", "Downloading"),
    }
    assert message(found, "Ready") == message(found, "ModelReady") == "3.2 of 16.0 GB"
    assert found["model"] == {
        "phase": "Downloading",
        "revision": COMMIT,
        "sizeBytes": 16 * GIGABYTE,
        "downloadedPercent": 20,
    }


def test_earlier_replicas_are_available_meanwhile_and_not_late() -> None:
    late = SERVING | {"status": SERVING["status"] | {"conditions": [LATE]}}
    for replicas in (SERVING, late):
        found = conditions(on_its_way(3.2, replicas))
        assert found["Available"] == ("True", "Serving")
        assert found["Ready"] == ("False", "Downloading")
        assert found["Stalled"] == ("False", "NotStalled")


def test_what_failed_for_good_is_stalled_and_told_once() -> None:
    before = on_its_way(3.2, SERVING)
    found = status(*FAILED, SERVING, previous=before)
    assert conditions(found) == {
        "Ready": ("False", "AccessDenied"),
        "Reconciling": ("False", "Done"),
        "Stalled": ("True", "AccessDenied"),
        "Available": ("True", "Serving"),
        "ModelReady": ("False", "AccessDenied"),
    }
    assert found["model"]["phase"] == "Failed"
    (notice,) = notices_of(before, found, created=False)
    assert (notice.type, notice.reason) == ("Warning", "AccessDenied")
    assert notices_of(found, status(*FAILED, SERVING, previous=found), created=False) == ()


def test_a_server_that_is_away_is_warned_of_and_nothing_is_stalled() -> None:
    before = on_its_way(3.2)
    away = downloading(3.2, reason="DownloadFailed", message="hub cannot be reached: again in 9 s")
    found = status(job(), claim(), away, pods=(pod(),), previous=before)
    assert conditions(found)["ModelReady"] == ("False", "DownloadRetrying")
    assert conditions(found)["Reconciling"] == ("True", "DownloadRetrying")
    assert conditions(found)["Stalled"] == ("False", "NotStalled")
    (notice,) = notices_of(before, found, created=False)
    assert (notice.type, notice.reason) == ("Warning", "DownloadRetrying")
    assert "hub cannot be reached" in notice.message
    assert notices_of(found, on_its_way(3.2, previous=found), created=False) == ()


def test_a_model_that_is_there_is_ready_when_replicas_serve_it() -> None:
    there = (job(ended=1), delivered(), claim())
    loading = deployment("chat-replica", 2, readyReplicas=0, availableReplicas=0)
    assert status(*there, loading)["model"]["phase"] == "Loading"
    found = status(*there, SERVING)
    assert conditions(found)["Ready"] == ("True", "AsDeclared")
    assert found["model"] == {
        "phase": "Ready",
        "revision": COMMIT,
        "sizeBytes": 16 * GIGABYTE,
        "downloadedPercent": 100,
    }
    in_pods = status(job(IN_PODS, ended=1), delivered(IN_PODS), SERVING, spec=IN_PODS)
    assert "downloadedPercent" not in in_pods["model"]


@pytest.mark.parametrize(("gigabytes", "is_same"), [(3.3, True), (3.9, True), (4.0, False)])
def test_a_little_progress_is_no_news(gigabytes: float, is_same: bool) -> None:
    before = on_its_way(3.2)
    assert same_status(on_its_way(gigabytes, previous=before), before) == is_same


def test_what_is_not_known_anew_stays_told() -> None:
    before = on_its_way(3.2)
    unread = status_of(OWNER, seen(BALANCER), LATER, before, Outcome())
    assert unread["model"]["revision"] == COMMIT


def test_a_local_model_has_neither_revision_nor_size() -> None:
    before = status(job(ended=1), delivered(), claim(), SERVING)
    local = status(SERVING, spec=Spec(Model("file:///models/a.gguf")), previous=before)
    assert local["model"] == {"phase": "Ready"}
