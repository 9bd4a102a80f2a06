"""Why a model is not there yet, and what becomes of its Job and its claim."""

from typing import Any

import msgspec
import pytest
from observed_downloads import (
    CACHE,
    CACHED,
    SETTINGS,
    at,
    claim,
    delivered,
    downloading,
    job,
    pod,
    read,
    report,
    seen,
    with_model,
)
from observed_objects import container

from fastgen_api.delivery import ModelPhase
from fastgen_api.spec import Cache, CacheType, Model, SecretKeyRef, Spec, parse
from fastgen_operator.delivery import JobStep
from fastgen_operator.settings import Images, Settings

JOB = job()["metadata"]["name"]
TRYING = (job(), claim())
MINE = Spec(Model("hf://owner/name", cache=Cache(CacheType.PERSISTENT_VOLUME_CLAIM,
                                                 claim_name="mine")))  # fmt: skip


FAILED = job(failed="Pod chat failed with exit code 1")
END = {"exitCode": 1, "reason": "Error", "message": "AccessDenied: the hub wants a token."}
ENDED = pod("Failed", containerStatuses=[container("download", state={"terminated": END})])


@pytest.mark.parametrize(
    ("objects", "pods", "reason", "words"),
    [
        ((report(state="Failed", reason="ChecksumMismatch", message="a.gguf is damaged"),), (),
         "ChecksumMismatch", "a.gguf is damaged. The download is tried again when"),
        ((), (ENDED,), "AccessDenied", "the hub wants a token. The download"),
        ((), (), "DownloadFailed", "exit code 1. The download"),
        ((downloading(3.2, reason="DownloadFailed", message="waits"),), (ENDED,),
         "AccessDenied", "the hub wants a token"),
    ],
    ids=["report", "pod", "job", "report of the time before"],
)  # fmt: skip
def test_a_download_that_failed_says_why_and_what_to_do(
    objects: Any, pods: Any, reason: str, words: str
) -> None:
    found = read(CACHED, seen(FAILED, claim(), *objects, pods=pods))
    assert found.is_failed
    assert (found.model, found.reason, found.job) == (None, reason, JobStep.KEEP)
    assert words in found.message
    assert f"Job {JOB} is deleted" in found.message


AWAY = "hub cannot be reached"
WAY_OUT = "the chart's hub.environment names a proxy"


@pytest.mark.parametrize(
    ("told", "latest", "reason", "words"),
    [
        (downloading(8, reason="DownloadFailed", message=f"{AWAY}: again in 4 s"), pod(),
         "DownloadRetrying", (f"8.0 of 16.0 GB: {AWAY}: again in 4 s. It goes on", WAY_OUT)),
        (report(state="Downloading", reason="DownloadFailed", message=AWAY), pod(),
         "DownloadRetrying", (f"looking the model up: {AWAY}. It goes on", WAY_OUT)),
        (report(state="Failed", reason="DownloadFailed", message=AWAY), pod("Failed"),
         "DownloadRetrying", (f"{AWAY}; it is tried again. It goes on", WAY_OUT)),
        (report(state="Failed", reason="CacheFull", message="9 GB are missing."), pod("Failed"),
         "CacheFull", ("9 GB are missing; it is tried again",)),
        (report(state="Failed", reason="AccessDenied", message="wants a token"), pod("Failed"),
         "Downloading", ("looking the model up: wants a token",)),
        (downloading(8), pod("Failed"),
         "DownloadRetrying", ("8.0 of 16.0 GB: the last attempt ended early; it is tried again",)),
    ],
    ids=["waits", "lookup", "attempt", "no room", "for good", "killed"],
)  # fmt: skip
def test_a_download_that_is_tried_again_is_no_failure_and_says_why(
    told: Any, latest: Any, reason: str, words: tuple[str, ...]
) -> None:
    found = read(CACHED, seen(*TRYING, told, pods=(latest,)))
    assert (found.phase, found.reason) == (ModelPhase.DOWNLOADING, reason)
    assert not [each for each in words if each not in found.message], found.message


OTHER_TOKEN = with_model(CACHED, token_secret_ref=SecretKeyRef("other", "token"))
OTHER_NODES = msgspec.structs.replace(CACHED, node_selector={"disk": "big"})
OTHER_ENGINE = msgspec.structs.replace(CACHED, engine=msgspec.structs.replace(
    CACHED.engine, max_model_length=99))  # fmt: skip
NEWER = Settings(Images("runtime:2", "control:2"))
MIRROR = Settings(SETTINGS.images, hub_endpoint="https://mirror")
NO_IMAGE = pod("Pending", containerStatuses=[container("download", state={"waiting": {
    "reason": "ImagePullBackOff", "message": "not found"}})])  # fmt: skip
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
NO_NODE = pod("Pending", conditions=[UNPLACED | {"message": "no node"}])


@pytest.mark.parametrize(
    ("found", "latest", "spec", "settings", "step"),
    [
        (job(), pod(), OTHER_TOKEN, SETTINGS, JobStep.REPLACE),
        (job(), NO_NODE, OTHER_NODES, SETTINGS, JobStep.REPLACE),
        (job(), pod(), OTHER_ENGINE, SETTINGS, JobStep.KEEP),
        (FAILED, ENDED, OTHER_TOKEN, SETTINGS, JobStep.REPLACE),
        (FAILED, ENDED, OTHER_ENGINE, SETTINGS, JobStep.KEEP),
        (FAILED, ENDED, CACHED, MIRROR, JobStep.REPLACE),
        (job(), pod(), CACHED, NEWER, JobStep.KEEP),
        (job(), NO_NODE, CACHED, NEWER, JobStep.KEEP),
        (job(), NO_IMAGE, CACHED, NEWER, JobStep.REPLACE),
        (job(), pod("Failed"), CACHED, MIRROR, JobStep.REPLACE),
        (job(deletionTimestamp=at(1)), pod(), CACHED, SETTINGS, JobStep.NONE),
    ],
)
def test_a_job_is_replaced_when_that_can_help(
    found: Any, latest: Any, spec: Spec, settings: Settings, step: JobStep
) -> None:
    delivery = read(spec, seen(found, claim(), pods=(latest,)), settings)
    assert delivery.job is step
    assert (("Job", JOB) in delivery.kept) == (step is JobStep.KEEP)


def test_a_job_that_succeeded_is_left_alone() -> None:
    for spec, settings in [(OTHER_TOKEN, SETTINGS), (OTHER_NODES, NEWER)]:
        found = read(spec, seen(job(ended=100), delivered(), claim()), settings)
        assert found.model is not None
        assert found.job is JobStep.KEEP


WAITING_CLAIM = claim(status={"phase": "Pending"})
CLASSLESS = claim(status={"phase": "Pending"}, spec={"accessModes": ["ReadWriteMany"]})
OWN_CLAIM = claim(metadata={"name": "mine", "uid": "u", "creationTimestamp": at(9)})
TAKEN = pod(
    "Pending",
    MINE,
    conditions=[
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 node(s) unavailable due to "
            "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another "
            "pod.",
        }
    ],
)
NO_SECRET = pod("Pending", containerStatuses=[container("download", state={"waiting": {
    "reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}})])  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "objects", "latest", "reason", "words"),
    [
        (CACHED, (job(), WAITING_CLAIM), NO_NODE, "ClaimPending",
         "PersistentVolumeClaim chat-models has no volume yet; it is of storage class fast"),
        (CACHED, (job(), WAITING_CLAIM), NO_NODE, "ClaimPending", "(scheduler: no node)"),
        (MINE, (job(MINE), OWN_CLAIM), TAKEN, "ClaimPending", "and another pod uses it"),
        (CACHED, (job(), WAITING_CLAIM), pod("Pending"), "ClaimPending", "no volume yet"),
        (CACHED, (job(), CLASSLESS), NO_NODE, "ClaimPending", "the cluster has no default one"),
        (CACHED, (job(), claim()), NO_NODE, "Unschedulable", "cannot start: no node"),
        (CACHED, (job(), claim()), NO_SECRET, "CreateContainerConfigError",
         'secret "hf" not found'),
        (CACHED, (job(), claim()), NO_IMAGE, "ImagePullBackOff", "not found"),
        (CACHED, (job(), claim()), pod("Pending"), "Downloading", "the download is starting"),
        (CACHED, (job(), claim()), None, "Downloading", f"Job {JOB} has made no pod yet"),
        (MINE, (job(MINE),), pod("Pending", MINE), "ClaimNotFound",
         "spec.model.cache.claimName names PersistentVolumeClaim mine, which does not exist"),
    ],
)  # fmt: skip
def test_a_download_that_cannot_start_is_explained(
    spec: Spec, objects: Any, latest: Any, reason: str, words: str
) -> None:
    found = read(spec, seen(*objects, pods=(latest,) if latest else ()))
    assert (found.phase, found.reason) == (ModelPhase.PENDING, reason)
    assert words in found.message


def test_the_latest_attempt_speaks() -> None:
    first = pod("Failed", name="try-1")
    second = pod("Running", name="try-2")
    second["metadata"]["creationTimestamp"] = at(10)
    found = read(CACHED, seen(*TRYING, downloading(3.2), pods=(second, first)))
    assert found.message == "3.2 of 16.0 GB"


OWNED = {"ownerReferences": [{"uid": "uid-1", "controller": True, "kind": "FastGenDeployment",
                              "name": "chat"}]}  # fmt: skip
LOCAL = Spec(Model("file:///models/a.gguf"))
VOLUME = {"persistentVolumeClaim": {"claimName": "chat-models"}}
READER = {
    "metadata": {"name": "r", "labels": {}},
    "status": {"phase": "Running"},
    "spec": {"volumes": [VOLUME]},
}


@pytest.mark.parametrize(
    ("found", "pods", "is_kept"),
    [
        (claim(), (), True),
        (claim(), (READER,), True),
        ("owned", (READER,), True),
        ("owned", (READER | {"status": {"phase": "Succeeded"}},), False),
        ("owned", (), False),
    ],
    ids=["retained", "retained and read", "read", "read once", "to be deleted"],
)
def test_a_claim_stays_while_it_is_retained_or_read(found: Any, pods: Any, is_kept: bool) -> None:
    if found == "owned":
        found = claim()
        found["metadata"] |= OWNED
    delivery = read(LOCAL, seen(found, pods=pods))
    assert (("PersistentVolumeClaim", "chat-models") in delivery.kept) == is_kept


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (CACHE, ""),
        (msgspec.structs.replace(CACHE, storage_class_name=None), ""),
        (msgspec.structs.replace(CACHE, size="30Gi"), ""),
        (msgspec.structs.replace(CACHE, size="1Gi"), ""),
        (msgspec.structs.replace(CACHE, storage_class_name="slow"),
         "has the storage class fast, and spec.model.cache.storageClassName asks for slow"),
        (msgspec.structs.replace(CACHE, access_modes=("ReadWriteOnce",)),
         "has the access modes ReadWriteMany, and spec.model.cache.accessModes asks for "
         "ReadWriteOnce"),
    ],
)  # fmt: skip
def test_what_a_claim_can_never_become_is_told(cache: Cache, words: str) -> None:
    found = read(with_model(CACHED, cache=cache), seen(claim()))
    assert words in found.claim_problem
    assert bool(found.claim_problem) == bool(words)


def test_a_claim_of_ours_that_the_spec_names_as_the_users_stays() -> None:
    found = claim()
    found["metadata"] |= OWNED
    for model in (
        {"source": "pvc://chat-models/model.gguf"},
        {
            "source": "hf://test/tiny",
            "cache": {"type": "PersistentVolumeClaim", "claimName": "chat-models"},
        },
    ):
        delivery = read(parse({"model": model}), seen(found))
        assert ("PersistentVolumeClaim", "chat-models") in delivery.kept
