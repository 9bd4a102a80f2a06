"""Whose an object is, who writes `replicas`, and what is told of others that do."""

import copy
from typing import Any

import pytest
from observed_objects import NOW, OWNER, conditions, deployment, message, observed

from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.names import Component
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.drift import content_fingerprint, is_applied, with_applied_annotation
from fastgen_operator.foreign_scaler import give_way
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner, child_metadata
from fastgen_operator.ownership import Ownership, conflict, may_prune, ownership_of
from fastgen_operator.pause import missing_children
from fastgen_operator.settings import Images, Settings
from fastgen_operator.situation import Outcome
from fastgen_operator.status import is_frozen, notices_of, same_status, status_of

OURS = {
    "app.kubernetes.io/managed-by": "fastgen-operator",
    "fastgen.dev/deployment": "chat",
}
IMAGES = Images(runtime="r:1", control="c:1")
THEIRS = ForeignScaler("hpa", "Deployment", "chat-replica")
ON_RESOURCE = ForeignScaler("hpa", "FastGenDeployment", "chat")


def reference(kind: str, name: str, uid: str, controller: bool = True) -> Any:
    return {"kind": kind, "name": name, "uid": uid, "controller": controller}


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [
        ({"ownerReferences": [reference("FastGenDeployment", "chat", "uid-1")]}, Ownership.OURS),
        ({"ownerReferences": [reference("FastGenDeployment", "chat", "uid-1")],
          "deletionTimestamp": "2025-01-01T00:00:00Z"}, Ownership.LEAVING),
        ({"ownerReferences": [reference("FastGenDeployment", "chat", "uid-0")]}, Ownership.LEAVING),
        ({"ownerReferences": [reference("FastGenDeployment", "other", "uid-2")]},
         Ownership.FOREIGN),
        ({"ownerReferences": [reference("HelmRelease", "chat", "uid-3")], "labels": OURS},
         Ownership.FOREIGN),
        ({"ownerReferences": [reference("Cluster", "c", "uid-4", controller=False)]},
         Ownership.FOREIGN),
        ({"labels": OURS}, Ownership.OURS),
        ({"labels": OURS, "ownerReferences": [
            reference("Cluster", "c", "uid-4", controller=False)]}, Ownership.OURS),
        ({"labels": OURS | {"fastgen.dev/deployment": "other"}}, Ownership.FOREIGN),
        ({"labels": OURS | {"app.kubernetes.io/managed-by": "Helm"}}, Ownership.FOREIGN),
        ({}, Ownership.FOREIGN),
    ],
    ids=["ours", "leaving", "of-a-namesake", "of-another", "controlled-by-another",
         "owned-without-control", "orphan", "orphan-with-an-owner", "orphan-of-another",
         "made-by-helm", "bare"],
)  # fmt: skip
def test_whose_an_object_is(metadata: Any, whose: Ownership) -> None:
    assert (
        ownership_of(OWNER, {"kind": "Service", "metadata": {"name": "chat"} | metadata}) is whose
    )


@pytest.mark.parametrize(
    ("metadata", "is_deleted"),
    [
        ({"labels": OURS}, False),
        ({"labels": OURS, "annotations": {"made-by": "hand"}}, False),
        ({"labels": OURS, "annotations": {"fastgen.dev/applied": "0"}}, True),
        ({"annotations": {"fastgen.dev/applied": "0"}}, False),
        ({"ownerReferences": [reference("FastGenDeployment", "chat", "uid-1")]}, True),
        ({"ownerReferences": [reference("FastGenDeployment", "other", "uid-2")],
          "annotations": {"fastgen.dev/applied": "0"}}, False),
        ({"name": "a:b", "labels": OURS, "annotations": {"fastgen.dev/applied": "0"}}, False),
    ],
    ids=["copied-labels", "other-annotations", "orphan", "no-labels", "controlled", "of-another",
         "no-name-of-ours"],
)  # fmt: skip
def test_only_what_the_operator_made_is_pruned(metadata: Any, is_deleted: bool) -> None:
    found = {"kind": "Role", "metadata": {"name": "chat-old"} | metadata}
    assert may_prune(OWNER, found) is is_deleted


def test_what_is_not_there_is_free() -> None:
    assert ownership_of(OWNER, None) is Ownership.FREE


def test_a_conflict_names_the_object_its_owner_and_the_way_out() -> None:
    found = {"kind": "PersistentVolumeClaim",
             "metadata": {"name": "chat-models", "ownerReferences": [
                 reference("StatefulSet", "db", "uid-9")]}}  # fmt: skip
    problem = conflict(found, OWNER)
    assert problem.reason == "NameConflict"
    assert problem.message.startswith(
        "PersistentVolumeClaim chat-models exists already and belongs to StatefulSet db: delete it"
    )


def manifest(replicas: int = 1, kind: str = "Deployment") -> Any:
    return {"kind": kind, "metadata": {"name": "chat-replica"},
            "spec": {"replicas": replicas, "paused": False}}  # fmt: skip


def held(marked: Any, replicas: int, version: str = "77") -> Any:
    """What the API server holds of an applied manifest, after others have scaled it."""
    found = copy.deepcopy(marked)
    found["spec"]["replicas"] = replicas
    found["metadata"]["resourceVersion"] = version
    return found


def test_replicas_that_another_scales_are_kept_and_make_no_write() -> None:
    first = held(with_applied_annotation(manifest()), 1)
    given = give_way(manifest(), first, [THEIRS])
    assert given["metadata"]["resourceVersion"] == "77", "made from this version alone"
    noted = held(given, 5, "78")
    again = give_way(manifest(), noted, [THEIRS])
    assert again["spec"]["replicas"] == 5
    assert is_applied(again, noted)
    assert is_applied(give_way(manifest(4), noted, [THEIRS]), noted), "nor does another number"


def test_the_declared_replicas_return_when_the_scaler_goes() -> None:
    noted = held(give_way(manifest(5), held(manifest(5), 5), [THEIRS]), 5)
    alone = give_way(manifest(5), noted, [])
    assert "resourceVersion" not in alone["metadata"]
    assert not is_applied(alone, noted, content_fingerprint(noted)), "even where they are the same"


def test_a_write_for_another_reason_keeps_them_too() -> None:
    noted = held(give_way(manifest(), held(manifest(), 1), [THEIRS]), 5)
    edited = manifest()
    edited["spec"]["paused"] = True
    given = give_way(edited, noted, [THEIRS])
    assert not is_applied(given, noted)
    assert given["spec"] == {"replicas": 5, "paused": True}


@pytest.mark.parametrize(
    ("desired", "found", "scalers"),
    [
        (manifest(), held(manifest(), 5), []),
        (manifest(), held(manifest(), 5), [ON_RESOURCE]),
        (manifest(), held(manifest(), 5), [ForeignScaler("hpa", "Deployment", "chat-balancer")]),
        (manifest(), None, [THEIRS]),
        (manifest(kind="Service"), held(manifest(), 5), [THEIRS]),
    ],
    ids=["nobody", "through-the-resource", "the-other-deployment", "not-made-yet", "no-deployment"],
)
def test_the_declared_replicas_are_applied_otherwise(
    desired: Any, found: Any, scalers: list[ForeignScaler]
) -> None:
    assert give_way(desired, found, scalers) == with_applied_annotation(desired)


@pytest.mark.parametrize(
    ("code", "message", "is_race"),
    [
        (409, 'Operation cannot be fulfilled on deployments.apps "chat-replica": the object has '
              "been modified; please apply your changes to the latest version and try again", True),
        (409, "Precondition failed: UID in precondition: 1, UID in object meta: 2", False),
        (422, "the object has been modified", False),
    ],
)  # fmt: skip
def test_a_write_between_read_and_apply_is_told_from_a_refusal(
    code: int, message: str, is_race: bool
) -> None:
    assert ClusterError(code, message).is_race is is_race


def scaled_by(*scalers: ForeignScaler) -> Observed:
    both = (deployment("chat-replica", 5), deployment("chat-balancer", 2))
    children = {("Deployment", each["metadata"]["name"]): each for each in both}
    return Observed(children, (), scalers)


def test_a_scaler_behind_the_resources_back_is_told_with_the_way_out() -> None:
    status = status_of(OWNER, scaled_by(THEIRS), NOW, {})
    told = conditions(status)
    assert told["ForeignScaler"] == ("True", "ForeignScaler")
    assert message(status, "ForeignScaler") == (
        "HorizontalPodAutoscaler hpa scales Deployment chat-replica, so spec.replicas and "
        "spec.scaling have no effect: point its scaleTargetRef at apiVersion "
        "fastgen.dev/v1alpha1, kind FastGenDeployment, name chat, or delete it"
    )
    assert (told["Ready"], told["Stalled"][0]) == (("True", "AsDeclared"), "False")
    warnings = [each for each in notices_of({}, status, False) if each.type == "Warning"]
    assert [each.reason for each in warnings] == ["ForeignScaler"]
    gone = status_of(OWNER, scaled_by(), NOW, status)
    assert "ForeignScaler" not in conditions(gone)
    assert not same_status(gone, status)


def test_a_scaler_of_the_balancer_is_told_with_its_own_way_out() -> None:
    scaler = ForeignScaler("hpa", "Deployment", "chat-balancer")
    status = status_of(OWNER, scaled_by(scaler), NOW, {})
    assert "spec.balancer.replicas has no effect" in message(status, "ForeignScaler")


def test_a_scaler_of_the_resource_is_welcome() -> None:
    assert "ForeignScaler" not in conditions(status_of(OWNER, scaled_by(ON_RESOURCE), NOW, {}))


@pytest.mark.parametrize(
    ("raw", "frozen", "is_held"),
    [
        ({}, True, True),
        ({"scaling": {"mode": "Auto"}}, True, True),
        ({"scaling": {"mode": "Recommend"}}, True, False),
        ({"scaling": {"mode": "Disabled"}}, True, False),
        ({"scaling": {"minReplicas": "a field of another version"}}, True, True),
        ({"scaling": {"mode": "Auto"}}, False, False),
    ],
)
def test_a_freeze_holds_what_scales_itself(raw: Any, frozen: bool, is_held: bool) -> None:
    assert is_frozen(raw, Settings(images=IMAGES, scaling_frozen=frozen)) is is_held


def test_a_freeze_is_told_and_ends() -> None:
    status = status_of(OWNER, observed(), NOW, {}, Outcome(frozen=True))
    assert conditions(status)["ScalingFrozen"] == ("True", "Frozen")
    assert conditions(status)["Ready"] == ("True", "AsDeclared")
    assert "scaling.frozen" in message(status, "ScalingFrozen")
    thawed = status_of(OWNER, observed(), NOW, status)
    assert "ScalingFrozen" not in conditions(thawed)
    assert not same_status(thawed, status)


def test_a_freeze_reaches_a_paused_resource() -> None:
    paused = Owner("chat", "team", "uid-1", generation=3, paused=True)
    status = status_of(paused, observed(), NOW, {"observedGeneration": 3}, Outcome(frozen=True))
    assert conditions(status)["ScalingFrozen"] == ("True", "Frozen")


def test_what_is_lost_while_paused_is_told_as_paused() -> None:
    paused = Owner("chat", "team", "uid-1", generation=3, paused=True)
    gone = Observed({("Deployment", "chat-balancer"): deployment("chat-balancer", 2)})
    told = conditions(status_of(paused, gone, NOW, {"observedGeneration": 3}))
    assert told["Ready"] == ("False", "Paused")
    assert told["Reconciling"] == ("True", "Paused")
    assert told["Stalled"] == ("False", "NotStalled")


def test_what_was_taken_from_a_paused_resource_is_named() -> None:
    paused = Owner("chat", "team", "uid-1", generation=3, paused=True)
    outcome = Outcome(missing=(("Service", "chat"), ("Role", "chat-balancer")))
    status = status_of(paused, observed(), NOW, {"observedGeneration": 3}, outcome)
    told = conditions(status)
    assert (told["Ready"], told["Stalled"][0]) == (("False", "Paused"), "False")
    assert message(status, "Ready").startswith("missing: Service chat, Role chat-balancer; nothing")


def test_a_job_that_has_done_its_work_is_not_missing() -> None:
    children = [{"kind": "Job", "metadata": {"name": "chat-model-1"}},
                {"kind": "Service", "metadata": {"name": "chat"}},
                deployment("chat-replica", 1)]  # fmt: skip
    assert missing_children(children, observed()) == (("Service", "chat"),)


def test_every_child_carries_what_it_is_taken_back_by() -> None:
    metadata = child_metadata(OWNER, "chat-models", Component.DOWNLOAD)
    del metadata["ownerReferences"]
    assert (
        ownership_of(OWNER, {"kind": "PersistentVolumeClaim", "metadata": metadata})
        is Ownership.OURS
    )
