"""Replicas wait for their model, serve on with the old one, and find the way back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_downloads import (
    CACHED,
    PATH,
    claim,
    delivered,
    job,
    made,
    read,
    running,
    seen,
    with_cache,
)

from fastgen_api.spec import (
    Engine,
    Model,
    RetentionPolicy,
    SecretKeyRef,
    Spec,
)
from fastgen_operator.delivery import remembered_models
from fastgen_operator.drift import keep_template
from fastgen_operator.fingerprint import (
    DECLARED_ANNOTATION,
    POD_TEMPLATE_ANNOTATION,
    TEMPLATE_ANNOTATION,
)

JOB = ("Job", job()["metadata"]["name"])
CLAIM = ("PersistentVolumeClaim", "chat-models")
REPLICAS = ("Deployment", "chat-replica")
THERE = (job(ended=100), delivered(), claim())
NEXT = Spec(msgspec.structs.replace(CACHED.model, source="hf://owner/next"), engine=CACHED.engine)


def test_replicas_wait_for_their_model_and_all_else_is_made() -> None:
    children = made(CACHED)
    assert REPLICAS not in children
    assert children.keys() >= {
        CLAIM,
        JOB,
        ("Deployment", "chat-balancer"),
        ("Service", "chat"),
        ("Service", "chat-replica"),
    }


def test_replicas_serve_on_with_the_old_model_and_can_be_scaled() -> None:
    before = running()
    spec = msgspec.structs.replace(NEXT, replicas=3, scaling=msgspec.structs.replace(
        NEXT.scaling, max_replicas=5))  # fmt: skip
    delivery = read(spec, seen(before, *THERE))
    assert delivery.model is None
    held = made(spec, delivery)[REPLICAS]
    assert held["spec"]["template"] == before["spec"]["template"]
    assert held["spec"]["replicas"] == 3
    for each in (DECLARED_ANNOTATION, TEMPLATE_ANNOTATION):
        assert held["metadata"]["annotations"][each] == before["metadata"]["annotations"][each]
    assert keep_template(held, before, stuck=False) is held
    # Pods of the old model that fail gain nothing by half of a new template.
    assert (
        keep_template(held, before, stuck=True)["spec"]["template"] == (before["spec"]["template"])
    )


def test_the_way_back_needs_no_download_and_no_new_pod() -> None:
    before = running()
    held = made(NEXT, read(NEXT, seen(before, *THERE)))[REPLICAS]
    # The Job of the model before is gone, and the report speaks of the next one.
    back = read(CACHED, seen(held, delivered(NEXT), claim()))
    assert back.model is not None
    again = made(CACHED, back)
    assert again[REPLICAS]["spec"]["template"] == before["spec"]["template"]
    assert again[REPLICAS]["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert not any(kind == "Job" for kind, _ in again)


def test_a_model_that_ran_before_the_last_one_is_remembered_too() -> None:
    found = seen(running(), job(NEXT, ended=10), delivered(NEXT), claim())
    after = made(NEXT, read(NEXT, found))[REPLICAS]
    assert len(remembered_models(after)) == 2
    local = Spec(Model("file:///models/a.gguf"))
    moved = made(local, read(local, seen(after, claim())))[REPLICAS]
    back = read(CACHED, seen(moved, claim()))
    assert back.model is not None
    assert back.model.path == PATH


@given(count=st.integers(1, 9))
def test_what_is_remembered_stays_short(count: int) -> None:
    deployment = None
    for number in range(count):
        spec = Spec(msgspec.structs.replace(CACHED.model, source=f"hf://owner/{number}"))
        objects = [job(spec, ended=10), delivered(spec), claim()]
        found = seen(*objects, *([deployment] if deployment else []))
        deployment = made(spec, read(spec, found))[REPLICAS]
    models = remembered_models(deployment)
    assert 1 <= len(models) <= min(count, 4)


def test_a_local_model_leaves_no_traces_on_the_deployment() -> None:
    local = made(Spec(Model("file:///models/a.gguf")))[REPLICAS]
    assert set(local["metadata"]["annotations"]) == {
        DECLARED_ANNOTATION,
        POD_TEMPLATE_ANNOTATION,
        TEMPLATE_ANNOTATION,
    }


@pytest.mark.parametrize(
    ("spec", "is_same"),
    [
        (with_cache(size="30Gi"), True),
        (with_cache(retention_policy=RetentionPolicy.DELETE), True),
        (
            Spec(msgspec.structs.replace(CACHED.model, token_secret_ref=SecretKeyRef("o", "t"))),
            True,
        ),
        (msgspec.structs.replace(CACHED, engine=Engine(max_model_length=99)), False),
    ],
)
def test_what_the_download_alone_heeds_leaves_replicas_in_peace(spec: Spec, is_same: bool) -> None:
    before, after = (made(each, read(each, seen(*THERE)))[REPLICAS] for each in (CACHED, spec))
    assert (before["spec"]["template"] == after["spec"]["template"]) == is_same
    marks = [each["metadata"]["annotations"][DECLARED_ANNOTATION] for each in (before, after)]
    assert (marks[0] == marks[1]) == is_same


def test_another_commit_moves_the_pods_whatever_runs() -> None:
    """It is part of what is declared, or an operator would keep the template that runs."""
    other = delivered(revision="d00d" * 10)
    first, second = (made(CACHED, read(CACHED, seen(job(ended=100), each, claim())))[REPLICAS]
                     for each in (delivered(), other))  # fmt: skip
    marks = [each["metadata"]["annotations"][DECLARED_ANNOTATION] for each in (first, second)]
    assert marks[0] != marks[1]
    assert keep_template(second, first, stuck=False) is second
