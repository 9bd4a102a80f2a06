"""Whom the step of one FastGenDeployment concerns: never too few, and nobody without a reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namespaces import deployment

from fastgen_api.sharing import balancers_serving
from fastgen_api.spec import KubernetesObject
from fastgen_operator.bonds import Bond, bond_of, related, touched
from fastgen_operator.children import make_children
from fastgen_operator.party import surroundings_of
from fastgen_operator.settings import Images, Settings
from fastgen_operator.standing import Standing, neighbours_of, standing_of

NAMES = ("a", "b", "c", "d", "e")
SETTINGS = Settings(Images("runtime:1", "control:1"))


def bonds_of(*resources: KubernetesObject) -> dict[str, Bond]:
    return {each["metadata"]["name"]: bond_of(each) for each in resources}


def test_who_names_no_other_and_is_named_by_none_is_alone() -> None:
    bonds = bonds_of(deployment("a"), deployment("b"), deployment("c", "x"))
    assert related("a", bonds) == {"a"}
    assert touched("a", None, bonds["a"], bonds) == set()
    assert touched("a", bonds["a"], None, {"b": bonds["b"]}) == set()


def test_sharers_come_go_and_change_for_one_another() -> None:
    bonds = bonds_of(deployment("a", "x"), deployment("b", "x"), deployment("c"))
    assert related("a", bonds) == {"a", "b"}
    assert touched("a", None, bonds["a"], bonds) == {"b"}
    assert touched("a", bonds["a"], None, {"b": bonds["b"], "c": bonds["c"]}) == {"b"}
    newer = bond_of(deployment("a", "x", generation=2))
    assert touched("a", bonds["a"], newer, bonds | {"a": newer}) == {"b"}
    moved = bond_of(deployment("a", "c"))
    assert touched("a", bonds["a"], moved, bonds | {"a": moved}) == {"b", "c"}


def test_a_status_is_no_step() -> None:
    bonds = bonds_of(deployment("a", "x"), deployment("b", "x"))
    assert touched("a", bonds["a"], bonds["a"], bonds) == set()


def test_routes_tie_both_ends() -> None:
    bonds = bonds_of(deployment("chat", "", "batch"), deployment("batch"), deployment("c"))
    assert related("chat", bonds) == related("batch", bonds) == {"chat", "batch"}
    assert touched("batch", None, bonds["batch"], bonds) == {"chat"}
    gone = {"chat": bonds["chat"], "c": bonds["c"]}
    assert touched("batch", bonds["batch"], None, gone) == {"chat"}
    without = bond_of(deployment("chat"))
    assert touched("chat", bonds["chat"], without, bonds | {"chat": without}) == {"batch"}


def test_who_takes_the_name_of_a_shared_balancer_concerns_its_sharers() -> None:
    taking = deployment("x", "y")
    bonds = bonds_of(deployment("a", "x"), taking)
    assert touched("x", None, bond_of(taking), bonds) == {"a"}
    assert related("a", bonds) == {"a", "x"}


@pytest.mark.parametrize(
    "spec",
    [None, {}, {"balancer": None}, {"balancer": []}, {"balancer": {"routes": 1}},
     {"balancer": {"routes": [None, 1, {}, {"deployment": None}]}}],
)  # fmt: skip
def test_what_cannot_be_read_ties_to_nothing(spec: Any) -> None:
    bond = bond_of({"metadata": {"name": "a", "uid": "u"}, "spec": spec})
    assert (bond.balancer, bond.targets) == ("a", frozenset())


@st.composite
def namespaces(draw: st.DrawFn) -> dict[str, KubernetesObject]:
    made = {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)):
        targets = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
        made[name] = deployment(
            name,
            draw(st.sampled_from(["", "a", "b", "x"])),
            *(each for each in targets if each != name),
            created=draw(st.integers(0, 2)),
            edge={"endpointPicker": draw(st.booleans())},
        )
    return made


Seen = tuple[Standing | None, tuple[KubernetesObject, ...]]


def seen(name: str, found: dict[str, KubernetesObject], around: list[str]) -> Seen:
    """What a reconcile of `name` makes, when it knows those around it."""
    members = neighbours_of(found[each] for each in around)
    owner = next(each.owner for each in members if each.owner.name == name)
    standing = standing_of(owner, members)
    if standing.exclusion:
        return standing, ()
    spec = next(each.spec for each in members if each.owner.name == name)
    surroundings = surroundings_of(owner, members)
    return standing, make_children(owner, spec, SETTINGS, None, ("PodMonitor",), surroundings)


@given(namespaces())
def test_the_related_are_enough_to_make_everything(found: dict[str, KubernetesObject]) -> None:
    bonds = bonds_of(*found.values())
    for name in found:
        few = seen(name, found, sorted(related(name, bonds)))
        assert few[0] is not None
        everything = seen(name, found, sorted(found))
        assert few[1] == everything[1]
        assert few[0] == everything[0]


@given(namespaces())
def test_callers_are_those_that_the_api_names(found: dict[str, KubernetesObject]) -> None:
    members = neighbours_of(found.values())
    every = [each.declared for each in members]
    for member in members:
        around = surroundings_of(member.owner, members)
        serving = set(balancers_serving(member.owner.name, every))
        assert set(around.callers) == serving - {around.party.name}


@given(namespaces(), st.sampled_from(NAMES), st.data())
def test_whoever_would_change_is_asked(
    found: dict[str, KubernetesObject], name: str, data: st.DataObject
) -> None:
    """Whatever one does, those not asked make the same objects and tell the same as before."""
    other = data.draw(namespaces()).get(name)
    after = {each: made for each, made in found.items() if each != name}
    if other is not None:
        other["metadata"]["generation"] = 2
        after[name] = other
    before = bond_of(found[name]) if name in found else None
    bonds = bonds_of(*after.values())
    asked = touched(name, before, bonds.get(name), bonds)
    for each in after:
        if each == name or each in asked:
            continue
        assert seen(each, found, sorted(found)) == seen(each, after, sorted(after))
