"""Which deployments a balancer serves, whatever the namespace holds."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api import sharing
from fastgen_api.sharing import Declared
from fastgen_api.spec import Spec, parse


def declared(deployment: str, created: int = 0, /, **more: Any) -> Declared:
    """`more`: fields of `spec.balancer`, and `served`, `deleting`."""
    served, deleting = more.pop("served", None), more.pop("deleting", False)
    model = {"source": "file:///m"} | ({"servedName": served} if served else {})
    spec = parse({"model": model, "balancer": more})
    return Declared(deployment, f"2026-01-01T00:00:{created:02}Z", spec, deleting)


def route(deployment: str) -> dict[str, Any]:
    return {"match": {"minPromptTokens": 1}, "deployment": deployment}


def names(found: tuple[Declared, ...]) -> list[str]:
    return [each.name for each in found]


def test_a_deployment_alone_has_a_balancer_of_its_own() -> None:
    all_ = [declared("a"), declared("b")]
    members = sharing.members_of("a", all_)
    assert names(members) == ["a"]
    assert not sharing.is_shared(members)
    assert sharing.balancers_serving("a", all_) == ("a",)


def test_sharers_by_age_then_name() -> None:
    all_ = [declared("c", 2, name="x"), declared("b", 2, name="x"), declared("a", 3, name="x")]
    members = sharing.members_of("x", all_)
    assert names(members) == ["b", "c", "a"]
    assert sharing.is_shared(members)
    assert sharing.is_shared(members[:1]), "it will not be alone for ever, and clients name it"


def test_the_balancer_of_a_deployment_can_be_joined() -> None:
    all_ = [declared("chat", 1), declared("batch", 2, name="chat")]
    members = sharing.members_of("chat", all_)
    assert names(members) == ["chat", "batch"]
    assert sharing.is_shared(members)
    assert not sharing.is_taken("chat", all_)


def test_a_name_that_is_taken() -> None:
    all_ = [declared("x", 1, name="y"), declared("a", 2, name="x"), declared("b", 3, name="y")]
    assert sharing.is_taken("x", all_)
    assert sharing.members_of("x", all_) == ()
    assert names(sharing.members_of("y", all_)) == ["x", "b"]


@pytest.mark.parametrize(
    ("edge", "path"),
    [
        ({"apiKeys": {"secretName": "k"}}, "balancer.apiKeys"),
        ({"tls": {"secretName": "t"}}, "balancer.tls"),
        ({"endpointPicker": True}, "balancer.endpointPicker"),
        ({"replicas": 5, "routing": "LeastTokens", "maxQueuedRequests": 1}, None),
    ],
)
def test_who_disagrees_with_the_oldest_is_not_served(
    edge: dict[str, Any], path: str | None
) -> None:
    first, second = declared("a", 1, name="x"), declared("b", 2, name="x", **edge)
    assert sharing.disagreement(second.spec.balancer, first.spec.balancer) == path
    assert names(sharing.members_of("x", [second, first])) == (["a"] if path else ["a", "b"])
    older = declared("b", 0, name="x", **edge)
    assert names(sharing.members_of("x", [first, older])) == (["b"] if path else ["b", "a"])


def test_the_most_pods_that_any_wants() -> None:
    members = (declared("a", replicas=1), declared("b", replicas=3))
    assert sharing.pods_of(members) == 3
    assert sharing.pods_of(()) == 1


def test_the_older_one_has_a_served_name_that_two_claim() -> None:
    members = sharing.members_of(
        "x",
        [
            declared("new", 2, name="x", served="llama"),
            declared("old", 1, name="x", served="llama"),
            declared("other", 3, name="x"),
        ],
    )
    assert sharing.served_names(members) == {"llama": "old", "other": "other"}


def test_routes_lead_to_what_is_there() -> None:
    ways = [route("batch"), route("gone"), route("going"), route("batch"), route("a")]
    a = declared("a", routes=ways)
    all_ = [a, declared("batch"), declared("going", deleting=True)]
    assert sharing.targets_of(a, all_) == ("batch",)
    assert names(sharing.reachable_of("a", all_)) == ["a", "batch"]
    assert sharing.balancers_serving("batch", all_) == ("a", "batch")


def test_routes_of_a_target_are_not_followed() -> None:
    all_ = [
        declared("a", routes=[route("b")]),
        declared("b", routes=[route("c")]),
        declared("c"),
    ]
    assert names(sharing.reachable_of("a", all_)) == ["a", "b"]
    assert sharing.balancers_serving("c", all_) == ("b", "c")


NAMES = st.sampled_from("abcd")


@st.composite
def namespaces(draw: st.DrawFn) -> list[Declared]:
    each = st.builds(
        declared,
        NAMES,
        st.integers(0, 3),
        name=st.sampled_from(["", "a", "b", "x"]),
        endpointPicker=st.booleans(),
        routes=st.lists(st.builds(route, NAMES), max_size=2),
        served=st.sampled_from([None, "m"]),
        deleting=st.booleans(),
    )
    return draw(st.lists(each, unique_by=lambda one: one.name, max_size=4))


@given(namespaces(), st.randoms())
def test_all_agree_whatever_the_order(all_: list[Declared], rng: Any) -> None:
    shuffled = list(all_)
    rng.shuffle(shuffled)
    served: list[str] = []
    for balancer in ("a", "b", "c", "d", "x"):
        members = sharing.members_of(balancer, all_)
        assert members == sharing.members_of(balancer, shuffled)
        assert sharing.reachable_of(balancer, all_)[: len(members)] == members
        assert set(sharing.served_names(members).values()) <= set(names(members))
        served += names(members)
        for found in sharing.reachable_of(balancer, all_):
            assert balancer in sharing.balancers_serving(found.name, all_)
    assert len(served) == len(set(served)), "no deployment has two balancers"


@given(namespaces(), namespaces())
def test_what_others_do_moves_no_older_member(all_: list[Declared], others: list[Declared]) -> None:
    """Who comes later neither takes a served name nor decides about the edge."""
    strangers = [
        Declared(f"later-{each.name}", "2027-01-01T00:00:00Z", each.spec) for each in others
    ]
    for balancer in ("a", "b", "x"):
        before = sharing.members_of(balancer, all_)
        if not before:
            continue
        after = sharing.members_of(balancer, [*all_, *strangers])
        assert after[: len(before)] == before
        owners = sharing.served_names(after)
        assert owners.items() >= sharing.served_names(before).items()


def test_declared_survives_a_file() -> None:
    one = declared("a", 1, name="x", routes=[route("b")], served="m")
    assert msgspec.json.decode(msgspec.json.encode(one), type=Declared) == one
    assert isinstance(one.spec, Spec)
