"""Reconciles of deployments that share a balancer, over what an API server would hold."""

import asyncio
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from held_namespace import Namespace
from namespaces import deployment

from fastgen_api import names
from fastgen_operator.bonds import touched
from fastgen_operator.reconcile import Reconciler
from fastgen_operator.settings import Images, Settings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
def reconciler(namespace: Namespace) -> Reconciler:
    return Reconciler(namespace, Settings(Images("runtime:1", "control:1")), lambda: NOW)


async def reconcile(reconciler: Reconciler, names_: Iterable[str]) -> None:
    for name in names_:
        await reconciler.reconcile(("team", name))


def run(reconciler: Reconciler, *called: str) -> None:
    asyncio.run(reconcile(reconciler, called))


def test_members_settle_and_write_nothing_more(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.declare(deployment("chat", "models", created=1))
    namespace.declare(deployment("code", "models", created=2))
    run(reconciler, "chat", "code")
    assert namespace.shared() == {
        ("Deployment", "models-balancer"), ("NetworkPolicy", "models-balancer"),
        ("PodDisruptionBudget", "models-balancer"), ("Role", "models-balancer"),
        ("RoleBinding", "models-balancer"), ("Service", "models"),
        ("ServiceAccount", "models-balancer"),
    }  # fmt: skip
    assert ("Deployment", "chat-balancer") not in namespace.objects
    settled = len(namespace.writes)
    assert settled == len(namespace.objects) - 2, "each object was written once"
    run(reconciler, "code", "chat", "code")
    assert len(namespace.writes) == settled
    for name in ("chat", "code"):
        assert namespace.objects[names.KIND, name]["status"]["url"] == "http://models.team.svc/v1"


def test_who_comes_and_goes_becomes_and_is_no_owner(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.declare(deployment("chat", "models", created=1))
    run(reconciler, "chat")
    namespace.declare(deployment("code", "models", created=2))
    run(reconciler, "code")
    assert namespace.owners("Service", "models") == ["chat", "code"]
    pods = namespace.objects["Deployment", "models-balancer"]["spec"]["template"]
    namespace.take_away("chat")
    assert ("Service", "models") in namespace.objects, "it goes with the last one alone"
    run(reconciler, "code")
    assert namespace.owners("Service", "models") == ["code"]
    assert namespace.objects["Deployment", "models-balancer"]["spec"]["template"] == pods
    namespace.take_away("code")
    assert namespace.objects == {}


@pytest.mark.parametrize("order", list(itertools.permutations(("chat", "code"))))
def test_who_moves_away_leaves_the_balancer_to_the_others_and_the_last_takes_it_away(
    namespace: Namespace, reconciler: Reconciler, order: tuple[str, str]
) -> None:
    namespace.declare(deployment("chat", "models", created=1))
    namespace.declare(deployment("code", "models", created=2))
    run(reconciler, "chat", "code")
    namespace.declare(deployment("chat", "", created=1, generation=2))
    run(reconciler, *order)
    assert namespace.owners("Service", "models") == ["code"]
    assert namespace.owners("Service", "chat") == ["chat"]
    namespace.declare(deployment("code", "chat", created=2, generation=2))
    run(reconciler, *order)
    assert namespace.shared() == set()
    assert namespace.owners("Service", "chat") == ["chat", "code"]
    settled = len(namespace.writes)
    run(reconciler, *order)
    assert len(namespace.writes) == settled


def test_an_own_balancer_is_joined_and_left(namespace: Namespace, reconciler: Reconciler) -> None:
    namespace.declare(deployment("chat", created=1))
    run(reconciler, "chat")
    assert namespace.objects["Service", "chat"]["metadata"]["ownerReferences"][0]["controller"]
    pods = namespace.objects["Deployment", "chat-balancer"]["spec"]["template"]
    namespace.declare(deployment("code", "chat", created=2))
    run(reconciler, "code", "chat")
    assert namespace.owners("Service", "chat") == ["chat", "code"]
    assert namespace.objects["Deployment", "chat-balancer"]["spec"]["template"] == pods
    namespace.take_away("code")
    run(reconciler, "chat")
    assert namespace.objects["Service", "chat"]["metadata"]["ownerReferences"][0]["controller"]


def test_a_reconcile_that_began_before_another_came_writes_nothing_outdated(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    async def scene() -> None:
        namespace.declare(deployment("chat", "models", created=1))
        role = ("Role", "models-balancer")
        gate = namespace.held[role] = asyncio.Event()
        first = asyncio.create_task(reconciler.reconcile(("team", "chat")))
        await asyncio.sleep(0.01)
        namespace.declare(deployment("code", "models", created=2))
        second = asyncio.create_task(reconciler.reconcile(("team", "code")))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, second)

    asyncio.run(scene())
    assert namespace.owners("Role", "models-balancer") == ["chat", "code"]
    assert namespace.owners("Deployment", "models-balancer") == ["chat", "code"]
    settled = len(namespace.writes)
    run(reconciler, "chat", "code")
    assert len(namespace.writes) == settled


def test_one_that_disagrees_is_told_and_changes_nothing_for_the_others(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.declare(deployment("chat", "models", created=1))
    run(reconciler, "chat")
    before = len(namespace.writes)
    tls = {"tls": {"secretName": "cert"}}
    namespace.declare(deployment("code", "models", created=2, edge=tls))
    run(reconciler, "code", "chat")
    assert len(namespace.writes) == before
    assert namespace.condition("code", "Stalled") == ("True", "BalancerDiffers")
    assert namespace.condition("chat", "Stalled")[0] == "False"
    namespace.declare(deployment("code", "models", created=2, generation=2))
    run(reconciler, "code")
    assert namespace.condition("code", "Stalled")[0] == "False"
    assert namespace.owners("Service", "models") == ["chat", "code"]


def test_one_with_a_bad_template_keeps_no_other_from_its_balancer(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    broken = {"spec": {"volumes": [{"emptyDir": {}}]}}
    namespace.declare(deployment("bad", "models", created=1, podTemplate=broken))
    namespace.declare(deployment("code", "models", created=2))
    run(reconciler, "bad", "code")
    assert namespace.condition("bad", "Stalled") == ("True", "PodTemplateInvalid")
    assert namespace.condition("code", "Stalled")[0] == "False"
    assert namespace.owners("Service", "models") == ["bad", "code"]


def test_a_foreign_service_of_the_balancers_name_stalls_its_sharers(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.objects["Service", "models"] = {
        "kind": "Service", "metadata": {"name": "models", "namespace": "team"},
    }  # fmt: skip
    namespace.declare(deployment("chat", "models"))
    run(reconciler, "chat")
    assert namespace.condition("chat", "Stalled") == ("True", "NameConflict")
    assert namespace.writes == []


def test_a_model_name_that_an_older_one_has_stalls_the_younger_and_makes_its_replicas(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    model = {"source": "file:///models/a.gguf", "servedName": "m"}
    namespace.declare(deployment("chat", "models", created=1, model=model))
    namespace.declare(deployment("code", "models", created=2, model=model))
    run(reconciler, "chat", "code")
    assert namespace.condition("code", "Stalled") == ("True", "ServedNameTaken")
    assert namespace.condition("chat", "Stalled")[0] == "False"
    assert ("Deployment", "code-replica") in namespace.objects


def test_a_route_to_nowhere_is_told_until_its_end_is_there(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.declare(deployment("chat", "", "batch"))
    paused = deployment("chat", "", "batch")
    paused["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: "true"}
    for declared in (paused, deployment("chat", "", "batch")):
        namespace.declare(declared | {"metadata": {"annotations": {}} | declared["metadata"]})
        run(reconciler, "chat")
        assert namespace.condition("chat", "RouteBlocked") == ("True", "RouteTargetMissing")
        assert namespace.condition("chat", "Stalled")[0] == "False"
    before = dict(namespace.store.bonds("team"))
    namespace.declare(deployment("batch"))
    bonds = namespace.store.bonds("team")
    assert touched("batch", before.get("batch"), bonds["batch"], bonds) == {"chat"}
    run(reconciler, "batch", "chat")
    kinds = {each["type"] for each in namespace.objects[names.KIND, "chat"]["status"]["conditions"]}
    assert "RouteBlocked" not in kinds


def test_a_paused_member_is_served_on_by_the_others(
    namespace: Namespace, reconciler: Reconciler
) -> None:
    namespace.declare(deployment("chat", "models", created=1))
    namespace.declare(deployment("code", "models", created=2))
    run(reconciler, "chat", "code")
    paused = deployment("chat", "models", created=1)
    paused["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: "true"}
    namespace.declare(paused)
    namespace.declare(deployment("code", "models", created=2, generation=2, edge={"replicas": 5}))
    run(reconciler, "chat", "code")
    assert namespace.owners("Service", "models") == ["chat", "code"]
    assert namespace.objects["Deployment", "models-balancer"]["spec"]["replicas"] == 5
    assert namespace.condition("chat", "Reconciling")[1] == "Paused"
