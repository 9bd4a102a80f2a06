"""What the operator knows of the cluster, whatever order it is told in."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastgen_api import names
from fastgen_api.foreign_scaler import AUTOSCALER_KIND
from fastgen_operator.kinds import WATCHED_KINDS
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.shelf import HistoryError, Shelf
from fastgen_operator.store import Store

KEY = ("team", "chat")
OTHER = ("team", "other")


def child(
    version: int, name: str = "chat-slo", of: str = "chat", namespace: str = "team", **more: Any
) -> dict[str, Any]:
    labels = {names.DEPLOYMENT_LABEL: of} if of else {}
    return {
        "metadata": {
            "name": name, "namespace": namespace, "labels": labels,
            "resourceVersion": str(version),
            "managedFields": [{"manager": "fastgen-operator"}],
        },
        **more,
    }  # fmt: skip


def names_of(shelf: Shelf, key: tuple[str, str] = KEY) -> list[str]:
    return [each["metadata"]["name"] for each in shelf.of(key)]


def versions_of(shelf: Shelf, key: tuple[str, str] = KEY) -> list[int]:
    return [int(each["metadata"]["resourceVersion"]) for each in shelf.of(key)]


def fill(shelf: Shelf, version: int, *found: dict[str, Any]) -> set[tuple[str, str]]:
    listing = shelf.begin_list()
    news = [key for each in found for key in listing.add(each)]
    return {*news, *listing.end(str(version))}


@pytest.fixture
def shelf() -> Shelf:
    return Shelf("ConfigMap", "*")


def test_what_is_kept_is_complete_but_for_who_wrote_which_field(shelf: Shelf) -> None:
    shelf.put(child(1, data={"slo.json": "{}"}))
    (found,) = shelf.of(KEY)
    assert found == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "chat-slo",
            "namespace": "team",
            "labels": {names.DEPLOYMENT_LABEL: "chat"},
            "resourceVersion": "1",
        },
        "data": {"slo.json": "{}"},
    }


def test_nobody_can_change_what_is_known(shelf: Shelf) -> None:
    given = child(1, data={})
    shelf.put(given)
    given["data"]["x"] = 1
    next(shelf.of(KEY))["data"]["x"] = 1
    assert next(shelf.of(KEY))["data"] == {}


def test_an_older_event_does_not_undo_a_newer_answer(shelf: Shelf) -> None:
    assert shelf.put(child(7)) == (KEY,)
    assert shelf.put(child(5)) == ()
    assert shelf.put(child(7)) == ()
    assert versions_of(shelf) == [7]


def test_a_late_deletion_does_not_take_what_was_made_again(shelf: Shelf) -> None:
    shelf.put(child(9))
    assert shelf.remove(child(8)) == ()
    assert versions_of(shelf) == [9]
    assert shelf.remove(child(10)) == (KEY,)
    assert names_of(shelf) == []


def test_a_late_answer_does_not_bring_back_what_was_deleted(shelf: Shelf) -> None:
    shelf.put(child(5))
    shelf.remove(child(6))
    shelf.reach("6")
    assert shelf.put(child(5)) == ()
    assert names_of(shelf) == []
    assert shelf.put(child(7)) == (KEY,)


def test_a_list_takes_what_is_missing_from_it_and_keeps_newer_answers(shelf: Shelf) -> None:
    fill(shelf, 3, child(1, "a"), child(2, "b"))
    shelf.put(child(8, "made by us just now"))
    assert fill(shelf, 5, child(1, "a"), child(4, "c")) == {KEY}
    assert names_of(shelf) == ["a", "c", "made by us just now"]
    assert fill(shelf, 5, child(1, "a"), child(4, "c")) == set()


def test_what_is_deleted_during_a_list_stays_deleted(shelf: Shelf) -> None:
    fill(shelf, 3, child(1))
    listing = shelf.begin_list()
    shelf.remove(child(6))
    assert listing.add(child(1)) == ()
    listing.end("5")
    assert names_of(shelf) == []


def test_a_list_of_an_earlier_history_empties_the_shelf(shelf: Shelf) -> None:
    """As after a restored backup: the next list then counts whatever its versions are."""
    fill(shelf, 90, child(80))
    with pytest.raises(HistoryError, match="version 30 after 90"):
        fill(shelf, 30, child(20))
    assert not shelf.is_filled
    assert fill(shelf, 30, child(20)) == {KEY}
    assert versions_of(shelf) == [20]


def test_a_child_that_changes_hands_is_news_for_both(shelf: Shelf) -> None:
    shelf.put(child(1))
    assert set(shelf.put(child(2, of="other"))) == {KEY, OTHER}
    assert (names_of(shelf), names_of(shelf, OTHER)) == ([], ["chat-slo"])
    assert shelf.put(child(3, of="")) == (OTHER,)
    assert len(shelf) == 0


def test_deployments_of_the_same_name_are_apart_by_namespace(shelf: Shelf) -> None:
    shelf.put(child(1, namespace="team"))
    shelf.put(child(2, namespace="guest"))
    assert versions_of(shelf, ("team", "chat")) == [1]
    assert versions_of(shelf, ("guest", "chat")) == [2]
    assert shelf.versions() == {("team", "chat"): 1, ("guest", "chat"): 2}


def test_of_autoscalers_only_those_are_kept_that_aim_at_us() -> None:
    store = Store()
    shelf = store.shelf(AUTOSCALER_KIND, "team")
    assert shelf is not None
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-replica"}
    shelf.put(child(1, "ours", of="", spec={"scaleTargetRef": target}))
    shelf.put(child(2, "theirs", of="", spec={"scaleTargetRef": target | {"name": "web"}}))
    assert len(shelf) == 1
    assert [each.name for each in store.observe(KEY).scalers] == ["ours"]


def test_observing_needs_a_list_of_every_kind_that_the_cluster_serves() -> None:
    store = Store()
    assert set(store.missing("team")) == set(WATCHED_KINDS)
    for shelf in store.shelves:
        if shelf.kind in MONITORING_KINDS:
            shelf.is_served = False
        else:
            fill(shelf, 1)
    assert store.missing("team") == ()
    assert store.observe(KEY).served == frozenset()
    monitors = store.shelf("PodMonitor", "team")
    assert monitors is not None
    monitors.is_served = True
    assert store.missing("team") == ("PodMonitor",)
    fill(monitors, 1)
    assert store.observe(KEY).served == {"PodMonitor"}


def test_namespaces_are_listed_and_missing_by_themselves() -> None:
    store = Store(["team", "guest"])
    for shelf in store.shelves:
        if shelf.scope == "team":
            fill(shelf, 1)
    assert store.missing("team") == ()
    assert store.missing("guest")
    assert store.shelf("Pod", "elsewhere") is None


def test_an_answer_is_seen_at_once() -> None:
    store = Store()
    store.put(child(1, kind="ConfigMap"))
    store.put(child(2, "chat-pod", kind="Pod"))
    store.put(child(3, "an event", kind="Event"))
    seen = store.observe(KEY)
    assert set(seen.children) == {("ConfigMap", "chat-slo")}
    assert [each["metadata"]["name"] for each in seen.pods] == ["chat-pod"]
    assert store.resource(KEY) is None
    store.put(child(4, "chat", kind=names.KIND, spec={"x": 1}))
    resource = store.resource(KEY)
    assert resource is not None
    assert resource["spec"] == {"x": 1}


@dataclass
class Server:
    """What an API server holds of one kind, and the events of its watch."""

    version: int = 1
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def write(self, name: str) -> dict[str, Any]:
        self.version += 1
        self.held[name] = child(self.version, name)
        self.events.append(("MODIFIED", self.held[name]))
        return self.held[name]

    def delete(self, name: str) -> None:
        self.version += 1
        del self.held[name]
        self.events.append(("DELETED", child(self.version, name)))


class ShelfMachine(RuleBasedStateMachine):
    """Answers come at any time, the watch late or cut, lists now and then: all ends as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.shelf = Shelf("ConfigMap", "*")
        fill(self.shelf, 1)
        self.told = 0
        self.answers: list[dict[str, Any]] = []

    @rule(name=st.sampled_from("abc"), late=st.booleans())
    def write(self, name: str, late: bool) -> None:
        answer = self.server.write(name)
        if late:
            self.answers.append(answer)
        else:
            self.shelf.put(answer)
            assert answer["metadata"]["resourceVersion"] in map(str, versions_of(self.shelf))

    @rule(name=st.sampled_from("abc"))
    def others_write(self, name: str) -> None:
        self.server.write(name)

    @precondition(lambda self: self.server.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.server.delete(data.draw(st.sampled_from(sorted(self.server.held))))

    @precondition(lambda self: self.answers)
    @rule()
    def late_answer(self) -> None:
        self.shelf.put(self.answers.pop(0))

    @rule(count=st.integers(1, 5))
    def watch(self, count: int) -> None:
        for kind, found in self.server.events[self.told : self.told + count]:
            (self.shelf.remove if kind == "DELETED" else self.shelf.put)(found)
            self.shelf.reach(found["metadata"]["resourceVersion"])
            self.told += 1

    @rule()
    def list_again(self) -> None:
        """The watch goes on from the list, as it does after 410."""
        fill(self.shelf, self.server.version, *self.server.held.values())
        self.told = len(self.server.events)

    @invariant()
    def all_told_is_all_known(self) -> None:
        shelf = self.shelf
        if self.told == len(self.server.events) and not self.answers:
            held = {each["metadata"]["resourceVersion"] for each in self.server.held.values()}
            assert set(map(str, versions_of(shelf))) == held


ShelfMachine.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40)
TestShelfMachine = ShelfMachine.TestCase


def test_what_comes_and_goes_leaves_nothing(shelf: Shelf) -> None:
    fill(shelf, 1)
    for version in range(2, 200, 2):
        shelf.put(child(version, name=f"pod-{version}"))
        shelf.remove(child(version + 1, name=f"pod-{version}"))
    assert not shelf._entries
    assert not shelf._refs
    assert not shelf._deleted
