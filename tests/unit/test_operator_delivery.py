"""How far a model is on its way, read from what was observed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_downloads import (
    CACHE,
    CACHED,
    COMMIT,
    GIGABYTE,
    IN_PODS,
    PATH,
    at,
    claim,
    delivered,
    downloading,
    job,
    made,
    pod,
    read,
    report,
    running,
    seen,
    with_model,
)

from fastgen_api.delivery import ModelPhase
from fastgen_api.spec import Cache, CacheType, Model, SecretKeyRef, Spec
from fastgen_operator.delivery import JobStep, key_of
from fastgen_operator.delivery_words import told_percent

JOB = job()["metadata"]["name"]
TRYING = (job(), claim())


def test_a_model_of_the_image_is_there() -> None:
    found = read(Spec(Model("file:///models/a.gguf")), seen())
    assert found.model is not None
    assert (found.phase, found.job) == (None, JobStep.NONE)


def test_a_model_in_a_claim_is_there_when_the_claim_is() -> None:
    spec = Spec(Model("pvc://shelf/llama/a.gguf"))
    missing = read(spec, seen())
    assert (missing.model, missing.reason) == (None, "ClaimNotFound")
    assert missing.again is not None, "no watch tells of a claim without our labels"
    assert "PersistentVolumeClaim shelf, which does not exist in namespace team" in missing.message
    found = read(spec, seen(claim(metadata={"name": "shelf", "uid": "u"})))
    assert found.model is not None
    assert found.model.path == "llama/a.gguf"
    assert found.job is JobStep.NONE


def test_a_download_begins_with_a_job() -> None:
    found = read(CACHED, seen())
    assert (found.model, found.phase, found.job) == (None, ModelPhase.PENDING, JobStep.MAKE)


@pytest.mark.parametrize(
    ("told", "percent", "message"),
    [
        (report(state="Downloading"), None, "looking the model up"),
        (downloading(3.2), 20, "3.2 of 16.0 GB"),
        (downloading(0), 0, "0.0 of 16.0 GB"),
        (downloading(16), 99, "15.8 of 16.0 GB"),
        (downloading(3.2, message="checking a.gguf"), 20, "3.2 of 16.0 GB: checking a.gguf"),
        (downloading(0.01, 0.02), 50, "10.0 of 20.0 MB"),
    ],
)  # fmt: skip
def test_a_download_tells_how_far_it_is(told: Any, percent: int | None, message: str) -> None:
    found = read(CACHED, seen(*TRYING, told, pods=(pod(),)))
    assert (found.phase, found.reason) == (ModelPhase.DOWNLOADING, "Downloading")
    assert (found.message, found.downloaded_percent) == (message, percent)
    assert (found.model, found.job) == (None, JobStep.KEEP)


def test_a_report_of_another_model_says_nothing() -> None:
    other = with_model(CACHED, source="hf://owner/other")
    found = read(CACHED, seen(*TRYING, downloading(3.2, spec=other), pods=(pod(),)))
    assert (found.message, found.revision) == ("looking the model up", None)


@given(before=st.integers(0, 100), percent=st.integers(0, 100))
def test_the_share_is_told_in_steps(before: int, percent: int) -> None:
    previous = {"model": {"phase": "Downloading", "downloadedPercent": before}}
    told = told_percent(percent, previous)
    assert told == percent or (told == before and abs(percent - before) < 5)
    # What was told stays told: no write without news.
    again = {"model": {"phase": "Downloading", "downloadedPercent": told}}
    assert told_percent(percent, again) == told


def test_the_message_stands_still_with_the_share() -> None:
    previous = {"model": {"phase": "Downloading", "downloadedPercent": 20}}
    found = read(CACHED, seen(*TRYING, downloading(3.9), pods=(pod(),)), previous=previous)
    assert (found.message, found.downloaded_percent) == ("3.2 of 16.0 GB", 20)


def test_a_delivered_model_is_there() -> None:
    found = read(CACHED, seen(job(ended=1), delivered(), claim()))
    assert found.model is not None
    assert (found.model.path, found.model.claim_uid) == (PATH, "claim-1")
    assert (found.phase, found.revision, found.downloaded_percent) == (None, COMMIT, 100)
    assert (found.size_bytes, found.job) == (16 * GIGABYTE, JobStep.KEEP)


def test_what_pods_download_themselves_has_no_share() -> None:
    found = read(IN_PODS, seen(job(IN_PODS, ended=1), delivered(IN_PODS)))
    assert found.model is not None
    assert (found.model.revision, found.downloaded_percent) == (COMMIT, None)
    on_its_way = read(IN_PODS, seen(job(IN_PODS), report(IN_PODS, state="Downloading"),
                                    pods=(pod(spec=IN_PODS),)))  # fmt: skip
    assert on_its_way.message == "looking the model up"


def test_a_report_counts_when_its_job_has_ended() -> None:
    """One that was left by an earlier attempt must not open the gate for the next one."""
    found = read(CACHED, seen(*TRYING, delivered(), pods=(pod(),)))
    assert (found.model, found.phase) == (None, ModelPhase.DOWNLOADING)


@pytest.mark.parametrize(
    ("ended", "step"), [(5, JobStep.KEEP), (60, JobStep.REPLACE)], ids=["wait", "give up"]
)
def test_a_lost_report_is_waited_for_and_then_asked_for_again(ended: float, step: JobStep) -> None:
    found = read(CACHED, seen(job(ended=ended), claim()))
    assert (found.model, found.job) == (None, step)
    assert (found.again is not None) == (step is JobStep.KEEP)


def test_a_model_is_remembered_without_job_and_report() -> None:
    found = read(CACHED, seen(running(), claim()))
    assert found.model is not None
    assert (found.model.path, found.revision, found.job) == (PATH, COMMIT, JobStep.KEEP)
    assert found.kept >= {("Job", JOB)}


def test_what_a_revision_means_by_now_moves_nothing() -> None:
    moved = delivered(revision="d00d" * 10)
    found = read(CACHED, seen(running(), job(ended=1), moved, claim()))
    assert found.revision == COMMIT


def test_a_model_is_gone_with_its_claim() -> None:
    lost = read(CACHED, seen(running(), job(ended=100), delivered(), claim("claim-2", made=10)))
    assert (lost.model, lost.job, lost.pinned) == (None, JobStep.REPLACE, COMMIT)
    without_job = read(CACHED, seen(running(), claim("claim-2", made=10)))
    assert (without_job.job, without_job.pinned) == (JobStep.MAKE, COMMIT)
    again = read(CACHED, seen(running(), job(ended=5), delivered(), claim("claim-2", made=10)))
    assert again.model is not None
    assert again.model.claim_uid == "claim-2"
    assert read(CACHED, seen(running(), job(ended=100), delivered())).job is JobStep.KEEP


def test_a_claim_on_its_way_out_holds_nothing() -> None:
    leaving = claim()
    leaving["metadata"]["deletionTimestamp"] = at(1)
    found = read(CACHED, seen(running(), job(ended=100), delivered(), leaving))
    assert (found.model, found.reason) == (None, "ClaimTerminating")
    children = made(CACHED, found)
    assert ("PersistentVolumeClaim", "chat-models") not in children
    # A pod that has ended would hold the claim for ever.
    assert ("Job", JOB) not in children.keys() | found.kept


@pytest.mark.parametrize(
    ("edit", "is_other"),
    [
        ({"source": "hf://owner/other"}, True),
        ({"revision": "v2"}, True),
        ({"cache": Cache()}, True),
        ({"cache": Cache(CacheType.PERSISTENT_VOLUME_CLAIM, claim_name="mine")}, True),
        ({"cache": msgspec.structs.replace(CACHE, size="30Gi")}, False),
        ({"token_secret_ref": SecretKeyRef("other", "token")}, False),
        ({"served_name": "a"}, False),
    ],
)
def test_the_key_stands_for_the_model_and_its_place(edit: dict[str, Any], is_other: bool) -> None:
    edited = with_model(CACHED, **edit)
    assert (key_of("chat", edited.model) != key_of("chat", CACHED.model)) == is_other
    assert len(key_of("chat", edited.model)) == 8
