"""Whose the objects of a balancer are when deployments share it, join it and leave it."""

from typing import Any

import pytest
from namespaces import deployment

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import party_children
from fastgen_operator.fingerprint import APPLIED_ANNOTATION
from fastgen_operator.owner import Owner
from fastgen_operator.ownership import Ownership, balancer_ownership, conflict, may_prune
from fastgen_operator.party import Party, surroundings_of
from fastgen_operator.settings import Images, Settings
from fastgen_operator.standing import neighbours_of

SETTINGS = Settings(Images("runtime:1", "control:1"))
CHAT = deployment("chat", "models", created=1)
CODE = deployment("code", "models", created=2)
LIVING = {"uid-chat", "uid-code", "uid-else"}


def party(*resources: KubernetesObject) -> Party:
    members = neighbours_of(resources)
    return surroundings_of(members[0].owner, members).party


def service(of: Party, **metadata: Any) -> KubernetesObject:
    """The balancer's Service as it was applied; `metadata` replaces parts of its metadata."""
    (found,) = [each for each in party_children(of, SETTINGS) if each["kind"] == "Service"]
    marked = {"annotations": {APPLIED_ANNOTATION: "0"}}
    return found | {"metadata": found["metadata"] | marked | metadata}


def sharer(name: str, uid: str = "") -> KubernetesObject:
    return {"kind": names.KIND, "name": name, "uid": uid or f"uid-{name}"}


def controller(name: str, uid: str = "", kind: str = names.KIND) -> KubernetesObject:
    return {"kind": kind, "name": name, "uid": uid or f"uid-{name}", "controller": True}


SHARED = party(CHAT, CODE)
DELETED = "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [
        ({}, Ownership.OURS),
        ({"ownerReferences": [sharer("chat")]}, Ownership.OURS),
        ({"ownerReferences": [sharer("else")]}, Ownership.OURS),
        ({"ownerReferences": [sharer("chat", "uid-before"), sharer("code")]}, Ownership.OURS),
        ({"ownerReferences": [sharer("chat", "uid-before")]}, Ownership.LEAVING),
        ({"deletionTimestamp": DELETED}, Ownership.LEAVING),
        ({"ownerReferences": []}, Ownership.OURS),
        ({"ownerReferences": [], "labels": {}}, Ownership.FOREIGN),
        ({"labels": {}}, Ownership.FOREIGN),
        ({"ownerReferences": [controller("chat")]}, Ownership.OURS),
        ({"ownerReferences": [controller("chat", "uid-before")]}, Ownership.LEAVING),
        ({"ownerReferences": [controller("models", "uid-x")]}, Ownership.LEAVING),
        ({"ownerReferences": [controller("else")]}, Ownership.FOREIGN),
        ({"ownerReferences": [controller("a", kind="StatefulSet")]}, Ownership.FOREIGN),
    ],
    ids=["as-applied", "of-one-member", "of-one-that-left", "of-one-that-was-deleted",
         "of-nobody-that-lives", "being-deleted", "orphan", "somebody-elses", "stripped-of-labels",
         "once-a-members-own", "of-an-earlier-member", "of-an-earlier-namesake",
         "of-another-deployment", "of-another-kind"],
)  # fmt: skip
def test_whose_a_shared_object_is(metadata: dict[str, Any], whose: Ownership) -> None:
    assert balancer_ownership(SHARED, LIVING, service(SHARED, **metadata)) is whose


def test_what_is_not_there_is_free() -> None:
    assert balancer_ownership(SHARED, LIVING, None) is Ownership.FREE


def test_a_balancer_of_ones_own_again_takes_back_what_was_shared() -> None:
    own = party(deployment("chat"))
    joined = party(deployment("chat", created=1), deployment("code", "chat", created=2))
    assert balancer_ownership(own, LIVING, service(joined)) is Ownership.OURS
    assert balancer_ownership(joined, LIVING, service(own)) is Ownership.OURS


CHAT_OWNER = Owner("chat", "team", "uid-chat")


@pytest.mark.parametrize(
    ("balancer", "balancers", "metadata", "is_deleted"),
    [
        # It left, and somebody still shares it, or nobody does.
        ("chat", {"chat", "models"}, {}, False),
        ("chat", {"chat"}, {}, True),
        # It is a member, and no member wants the object any more.
        ("models", {"models"}, {}, True),
        # Another one's, or not made by us.
        ("chat", {"chat"}, {"ownerReferences": [sharer("code")]}, False),
        ("chat", {"chat"}, {"labels": {}}, False),
        ("chat", {"chat"}, {"annotations": {}}, False),
    ],
)
def test_the_last_to_leave_takes_the_balancer_away(
    balancer: str, balancers: set[str], metadata: dict[str, Any], is_deleted: bool
) -> None:
    found = service(SHARED, **metadata)
    assert may_prune(CHAT_OWNER, found, balancer, balancers) is is_deleted


def test_a_conflict_over_a_shared_name_names_the_way_out_of_sharing() -> None:
    found = {"kind": "Service", "metadata": {"name": "models"}}
    problem = conflict(found, CHAT_OWNER, "models")
    assert problem.reason == "NameConflict"
    assert problem.message == (
        "Service models exists already and is not ours: delete it, or name another balancer than "
        "models in spec.balancer.name"
    )
