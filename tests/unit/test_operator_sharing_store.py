"""What each of the deployments that share a balancer sees of it, and nobody else."""

from typing import Any

import pytest
from namespaces import deployment

from fastgen_api import names
from fastgen_api.foreign_scaler import AUTOSCALER_KIND
from fastgen_api.names import Component
from fastgen_operator.store import Store


def found(kind: str, name: str, of: str, component: Component, **metadata: Any) -> dict[str, Any]:
    """An object of ours, as the API server tells it."""
    labels = {names.DEPLOYMENT_LABEL: of, names.COMPONENT_LABEL: str(component)}
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "team", "labels": labels} | metadata,
    }


def owned(*deployments: str) -> dict[str, Any]:
    references = [{"kind": names.KIND, "name": each, "uid": f"uid-{each}"} for each in deployments]
    return {"ownerReferences": references}


def scaler(name: str, target: str) -> dict[str, Any]:
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    return {
        "kind": AUTOSCALER_KIND,
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"scaleTargetRef": aim},
    }


@pytest.fixture
def store() -> Store:
    """`chat` and `code` share `models`; `models` is a deployment behind another balancer."""
    store = Store()
    replica, balancer = Component.REPLICA, Component.BALANCER
    objects = [
        deployment("chat", "models"),
        deployment("code", "models"),
        deployment("models", "elsewhere"),
        found("Deployment", "chat-replica", "chat", replica),
        found("Deployment", "code-replica", "code", replica),
        found("Deployment", "models-replica", "models", replica),
        found("Deployment", "models-balancer", "models", balancer, **owned("chat", "code")),
        found("Pod", "chat-replica-1", "chat", replica),
        found("Pod", "chat-balancer-1", "chat", balancer),
        found("Pod", "models-replica-1", "models", replica),
        found("Pod", "models-balancer-1", "models", balancer),
        found("Pod", "elsewhere-balancer-1", "elsewhere", balancer),
        scaler("of-the-balancer", "models-balancer"),
        scaler("of-replicas", "models-replica"),
        scaler("of-what-was", "chat-balancer"),
    ]
    for version, each in enumerate(objects, start=1):
        metadata = each["metadata"] | {"resourceVersion": str(version)}
        store.put(each | {"metadata": metadata})
    return store


@pytest.mark.parametrize(
    ("name", "children", "pods", "scalers", "balancer"),
    [
        ("chat", {"chat-replica", "models-balancer"}, {"chat-replica-1", "models-balancer-1"},
         {"of-the-balancer"}, "models"),
        ("code", {"code-replica", "models-balancer"}, {"models-balancer-1"},
         {"of-the-balancer"}, "models"),
        ("models", {"models-replica"}, {"models-replica-1", "elsewhere-balancer-1"},
         {"of-replicas"}, "elsewhere"),
    ],
)  # fmt: skip
def test_each_sees_its_own_and_the_balancer_in_front(
    store: Store,
    name: str,
    children: set[str],
    pods: set[str],
    scalers: set[str],
    balancer: str,
) -> None:
    seen = store.observe(("team", name))
    assert {each for _, each in seen.children} == children
    assert {each["metadata"]["name"] for each in seen.pods} == pods
    assert {each.name for each in seen.scalers} == scalers
    assert seen.balancer == balancer


def test_what_one_still_owns_it_sees_after_it_has_moved(store: Store) -> None:
    moved = deployment("code", generation=2)
    store.put(moved | {"metadata": moved["metadata"] | {"resourceVersion": "99"}})
    seen = store.observe(("team", "code"))
    assert ("Deployment", "models-balancer") in seen.children
    assert not seen.pods
    assert set(store.sharers(("team", "models"))) == {("team", "chat")}


def test_a_deployment_that_is_gone_ties_to_nobody(store: Store) -> None:
    shelf = store.shelf(names.KIND, "team")
    assert shelf is not None
    gone = deployment("code", "models")
    shelf.remove(gone | {"metadata": gone["metadata"] | {"resourceVersion": "99"}})
    assert set(store.bonds("team")) == {"chat", "models"}
    assert {each["metadata"]["name"] for each in store.neighbours(("team", "chat"))} == {
        "chat", "models",
    }  # fmt: skip
    shelf.clear()
    assert store.bonds("team") == {}
