"""What deployments that share a balancer, or route to one another, are made into."""

from typing import Any

import pytest
from namespaces import deployment

from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import id_of, make_children
from fastgen_operator.fingerprint import DECLARED_ANNOTATION, TEMPLATE_ANNOTATION
from fastgen_operator.kinds import is_of_balancer
from fastgen_operator.party import surroundings_of
from fastgen_operator.settings import Images, Settings
from fastgen_operator.standing import Standing, neighbours_of, standing_of

SETTINGS = Settings(Images("runtime:1", "control:1"))
MONITORED = ("PodMonitor", "PrometheusRule")
CHAT = deployment("chat", "models", created=1)
CODE = deployment("code", "models", created=2)

Children = dict[tuple[str, str], KubernetesObject]


def children(name: str, *resources: KubernetesObject) -> Children:
    """The objects that the reconcile of `name` makes."""
    members = neighbours_of(resources)
    found = next(each for each in members if each.owner.name == name)
    around = surroundings_of(found.owner, members)
    made = make_children(found.owner, found.spec, SETTINGS, None, MONITORED, around)
    return {id_of(each): each for each in made}


def standing(name: str, *resources: KubernetesObject) -> Standing:
    members = neighbours_of(resources)
    return standing_of(next(each.owner for each in members if each.owner.name == name), members)


def shared(made: Children, balancer: str = "models") -> Children:
    return {each: child for each, child in made.items() if is_of_balancer(child, balancer)}


def owners(child: KubernetesObject) -> list[str]:
    return [each["name"] for each in child["metadata"]["ownerReferences"]]


def test_all_members_make_the_same_balancer_and_each_its_own_replicas() -> None:
    of_chat, of_code = children("chat", CHAT, CODE), children("code", CODE, CHAT)
    assert shared(of_chat) == shared(of_code)
    assert set(shared(of_chat)) == {
        ("ServiceAccount", "models-balancer"), ("Role", "models-balancer"),
        ("RoleBinding", "models-balancer"), ("Service", "models"),
        ("PodDisruptionBudget", "models-balancer"), ("NetworkPolicy", "models-balancer"),
        ("Deployment", "models-balancer"), ("PodMonitor", "models-balancer"),
    }  # fmt: skip
    own = set(of_chat) - set(shared(of_chat))
    assert {name for _, name in own} == {"chat", "chat-replica", "chat-slo"}
    assert own.isdisjoint(of_code)


def test_the_balancers_objects_go_with_the_last_member() -> None:
    for child in shared(children("chat", CHAT, CODE)).values():
        assert owners(child) == ["chat", "code"]
        for each in child["metadata"]["ownerReferences"]:
            assert each["uid"] == f"uid-{each['name']}"
            assert "controller" not in each
            assert "blockOwnerDeletion" not in each
    for child in shared(children("code", CODE)).values():
        assert owners(child) == ["code"]


def test_a_member_that_is_being_deleted_is_served_and_owns_no_more() -> None:
    leaving = deployment("chat", "models", created=1)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    made = shared(children("code", leaving, CODE))
    assert {tuple(owners(child)) for child in made.values()} == {("code",)}
    rules = made["Role", "models-balancer"]["rules"]
    assert all(each.get("resourceNames", ["chat"]) != ["code"] for each in rules)


def test_the_balancer_may_touch_its_members_and_their_leases_alone() -> None:
    rules = children("chat", CHAT, CODE)["Role", "models-balancer"]["rules"]
    named = {
        (each["resources"][0], tuple(each["verbs"])): each["resourceNames"]
        for each in rules
        if "resourceNames" in each
    }
    assert named == {
        ("fastgendeployments/scale", ("update",)): ["chat", "code"],
        ("fastgendeployments/status", ("patch",)): ["chat", "code"],
        ("leases", ("get", "update")): [
            "chat-balancer",
            "chat-balancer-memo",
            "code-balancer",
            "code-balancer-memo",
        ],
    }


def test_who_routes_elsewhere_may_ask_who_leads_there_and_no_more() -> None:
    chat, batch = deployment("chat", "", "batch"), deployment("batch")
    rules = children("chat", chat, batch)["Role", "chat-balancer"]["rules"]
    (asked,) = [each for each in rules if each.get("resourceNames") == ["batch-balancer"]]
    assert (asked["resources"], asked["verbs"]) == (["leases"], ["get"])
    assert "chat" not in str(children("batch", chat, batch)["Role", "batch-balancer"])


def ingress(made: Children, name: str, port: int) -> list[str]:
    """Names of the balancers whose pods may come to a port."""
    (rule,) = [
        rule
        for rule in made["NetworkPolicy", name]["spec"]["ingress"]
        if port in [each["port"] for each in rule["ports"]]
    ]
    peers = [each["podSelector"]["matchLabels"] for each in rule["from"] if "podSelector" in each]
    assert all(each["app.kubernetes.io/component"] == "balancer" for each in peers)
    return [each["app.kubernetes.io/instance"] for each in peers]


def test_replicas_admit_the_balancers_that_serve_them() -> None:
    chat, batch = deployment("chat", "", "batch"), deployment("batch", "models")
    every = (chat, batch, CODE)
    assert ingress(children("chat", *every), "chat-replica", 8000) == ["chat"]
    assert ingress(children("batch", *every), "batch-replica", 9000) == ["models", "chat"]
    assert ingress(children("code", *every), "code-replica", 8000) == ["models"]


def test_balancers_of_the_same_deployment_ask_one_another() -> None:
    chat, batch = deployment("chat", "", "batch"), deployment("batch", "models")
    every = (chat, batch, CODE)
    assert ingress(children("code", *every), "models-balancer", 9092) == ["models", "chat"]
    assert ingress(children("chat", *every), "chat-balancer", 9092) == ["chat", "models"]


def test_gateways_reach_replicas_where_a_route_leads_them() -> None:
    chat = deployment("chat", "", "batch", edge={"endpointPicker": True})
    made = children("batch", chat, deployment("batch"))
    (rule, _) = made["NetworkPolicy", "batch-replica"]["spec"]["ingress"]
    assert any("namespaceSelector" in each for each in rule["from"])
    assert "namespaceSelector" not in str(made["NetworkPolicy", "batch-balancer"])


def pods_spec(made: Children, name: str = "models-balancer") -> Any:
    return made["Deployment", name]["spec"]["template"]["spec"]


def test_a_shared_balancer_has_the_most_pods_and_the_longest_patience_that_one_asks_for() -> None:
    sleeper = {"minReplicas": 0, "scaleToZero": {"holdSeconds": 300}}
    chat = deployment("chat", "models", edge={"replicas": 1}, rollout={"drainSeconds": 200},
                      imagePullSecrets=[{"name": "one"}])  # fmt: skip
    code = deployment("code", "models", edge={"replicas": 3}, scaling=sleeper,
                      imagePullSecrets=[{"name": "one"}, {"name": "two"}])  # fmt: skip
    made = children("chat", chat, code)
    assert made["Deployment", "models-balancer"]["spec"]["replicas"] == 3
    assert pods_spec(made)["terminationGracePeriodSeconds"] == 300 + 200 + 20
    assert pods_spec(made)["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    picker = next(each for each in pods_spec(made)["containers"] if each["name"] == "picker")
    assert "--balancer=models" in picker["args"]


def marks(made: Children, name: str) -> tuple[str, str]:
    annotations = made["Deployment", name]["metadata"]["annotations"]
    return annotations[DECLARED_ANNOTATION], annotations[TEMPLATE_ANNOTATION]


def test_who_joins_or_leaves_renews_no_pod_of_the_balancer() -> None:
    alone, both = children("chat", CHAT), children("chat", CHAT, CODE)
    assert marks(alone, "models-balancer")[1] == marks(both, "models-balancer")[1]
    assert marks(alone, "chat-replica") == marks(both, "chat-replica")


def test_a_balancer_of_its_own_is_joined_without_renewing_its_pods() -> None:
    """Its objects keep their names, and its pods their form."""
    chat, code = deployment("chat", created=1), deployment("code", "chat", created=2)
    before, after = children("chat", chat), children("chat", chat, code)
    assert marks(before, "chat-balancer")[1] == marks(after, "chat-balancer")[1]
    assert set(after) - set(before) == {("PodMonitor", "chat-balancer")}
    assert owners(before["Service", "chat"]) == ["chat"]
    assert owners(after["Service", "chat"]) == ["chat", "code"]


@pytest.mark.parametrize("field", ["model", "image", "resources"])
def test_an_edit_of_a_member_brings_a_newer_operators_balancer_as_it_does_its_replicas(
    field: str,
) -> None:
    edits: dict[str, Any] = {
        "model": {"source": "file:///models/b.gguf"}, "image": "runtime:2",
        "resources": {"limits": {"cpu": "1"}},
    }  # fmt: skip
    edited = deployment("code", "models", created=2, **{field: edits[field]})
    before, after = children("chat", CHAT, CODE), children("chat", CHAT, edited)
    assert marks(before, "models-balancer")[0] != marks(after, "models-balancer")[0]
    assert marks(before, "models-balancer")[1] == marks(after, "models-balancer")[1]
    assert marks(before, "chat-replica") == marks(after, "chat-replica")


def test_each_pod_is_scraped_once() -> None:
    """What is scraped twice is counted twice in every sum."""
    joined = deployment("chat", created=1), deployment("code", "chat", created=2)
    for every, balancer in (((CHAT, CODE), "models"), (joined, "chat"), (joined[:1], "chat")):
        made: Children = {}
        for resource in every:
            made |= children(resource["metadata"]["name"], *every)
        monitors = [child for (kind, _), child in made.items() if kind == "PodMonitor"]
        pods = [child for (kind, _), child in made.items() if kind == "Deployment"]
        assert (("Deployment", f"{balancer}-balancer")) in made
        for pod in pods:
            labels = pod["spec"]["template"]["metadata"]["labels"]
            chosen = [
                each["metadata"]["name"]
                for each in monitors
                if each["spec"]["selector"]["matchLabels"].items() <= labels.items()
            ]
            assert len(chosen) == 1, (pod["metadata"]["name"], chosen)


def test_alerts_stay_each_deployments_own() -> None:
    of_chat, of_code = children("chat", CHAT, CODE), children("code", CHAT, CODE)
    assert ("PrometheusRule", "chat") in of_chat
    assert 'deployment="code"' not in str(of_chat["PrometheusRule", "chat"])
    assert of_chat["PrometheusRule", "chat"] == children("chat", CHAT)["PrometheusRule", "chat"]
    assert ("PrometheusRule", "code") in of_code


EDGES: list[tuple[str, dict[str, Any]]] = [
    ("spec.balancer.apiKeys", {"apiKeys": {"secretName": "keys"}}),
    ("spec.balancer.tls", {"tls": {"secretName": "cert"}}),
    ("spec.balancer.endpointPicker", {"endpointPicker": True}),
]


@pytest.mark.parametrize(("field", "edge"), EDGES)
def test_who_says_otherwise_about_the_edge_is_told_and_the_others_are_not(
    field: str, edge: dict[str, Any]
) -> None:
    other = deployment("other", "models", created=3, edge=edge)
    found = standing("other", CHAT, CODE, other).exclusion
    assert found is not None
    assert found.reason == "BalancerDiffers"
    assert f"{field} is not as in FastGenDeployment chat" in found.message
    assert f"make {field} the same" in found.message
    assert "another balancer in spec.balancer.name" in found.message
    for name in ("chat", "code"):
        assert standing(name, CHAT, CODE, other).exclusion is None
        assert children(name, CHAT, CODE, other) == children(name, CHAT, CODE)


def test_a_name_that_another_deployment_has_taken() -> None:
    taking = deployment("models", "elsewhere")
    found = standing("chat", CHAT, taking).exclusion
    assert found is not None
    assert found.reason == "BalancerNameTaken"
    assert "is the name of FastGenDeployment models" in found.message
    assert "another name" in found.message
    assert standing("models", CHAT, taking).exclusion is None


def test_the_younger_of_two_with_one_model_name_is_told() -> None:
    chat = deployment("chat", "models", created=1, model={"source": "file:///a", "servedName": "m"})
    code = deployment("code", "models", created=2, model={"source": "file:///b", "servedName": "m"})
    found = standing("code", chat, code).complaint
    assert found is not None
    assert found.reason == "ServedNameTaken"
    for words in ("the model name m", "FastGenDeployment chat", "x-fastgen-model: code",
                  "spec.model.servedName"):  # fmt: skip
        assert words in found.message
    assert standing("chat", chat, code).complaint is None
    elsewhere = deployment("code", "", model={"source": "file:///b", "servedName": "m"})
    assert standing("code", chat, elsewhere).complaint is None


def test_a_route_that_leads_nowhere_is_told_and_keeps_nobody_from_serving() -> None:
    chat = deployment("chat", "", "batch", "long")
    leaving = deployment("long")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    found = standing("chat", chat, leaving)
    assert found.broken_routes is not None
    assert found.broken_routes.reason == "RouteTargetMissing"
    assert found.broken_routes.message.startswith("batch, long in spec.balancer.routes are no")
    assert (found.exclusion, found.complaint) == (None, None)
    assert standing("chat", chat, deployment("batch"), deployment("long")).broken_routes is None


def test_a_neighbour_that_cannot_be_read_is_none() -> None:
    broken = deployment("broken", "models", created=0, engine={"kvBlockSize": "x"})
    for spec in (broken["spec"], {}, None):
        found = children("chat", CHAT, CODE, broken | {"spec": spec})
        assert found == children("chat", CHAT, CODE)
