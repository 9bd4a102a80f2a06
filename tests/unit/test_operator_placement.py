"""Where pods go that share a volume which one node at a time may have."""

from typing import Any

import msgspec
import pytest
from observed_downloads import read, seen

from fastgen_api.spec import KubernetesObject, parse
from fastgen_operator.children import make_children
from fastgen_operator.claim_access import access_problem, claim_failure
from fastgen_operator.delivery import Delivered, Delivery, JobStep, modes_of
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner
from fastgen_operator.placement import placement
from fastgen_operator.settings import Images, Settings

OWNER = Owner("chat", "team", "uid-1")
IMAGES = Images("runtime:1", "control:1")
CLAIM = {"type": "PersistentVolumeClaim", "size": "1Gi"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MINE = {"model": {"source": "hf://test/tiny",
                  "cache": {"type": "PersistentVolumeClaim", "claimName": "mine"}}}  # fmt: skip
SHELF = {"model": {"source": "pvc://mine/m.gguf"}}
ZONE = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}


def model_with(cache: dict[str, Any], **more: Any) -> KubernetesObject:
    return {"model": {"source": "hf://test/tiny", "cache": cache}, **more}


def claim(*modes: str, name: str = "mine") -> KubernetesObject:
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "uid": "u"},
            "spec": {"accessModes": list(modes)}}  # fmt: skip


def company(raw: KubernetesObject, *modes: str) -> list[KubernetesObject]:
    """The pod affinities that a replica requires; modes: of the user's claim."""
    spec = parse(raw)
    found = modes_of(OWNER.name, spec.model, claim(*modes) if modes else None)
    affinity = placement(OWNER, spec, IMAGES, found).get("affinity") or {}
    return list((affinity.get("podAffinity") or {}).get(REQUIRED) or ())


def pods_of(raw: KubernetesObject, modes: tuple[str, ...]) -> dict[str, KubernetesObject]:
    """The pod templates by component, of a model that is there and of its download."""
    delivery = Delivery(Delivered(key="", path="m"), job=JobStep.MAKE, modes=modes)
    children = make_children(OWNER, parse(raw), Settings(IMAGES), delivery)
    pods = [each["spec"]["template"] for each in children if each["kind"] in ("Job", "Deployment")]
    return {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in pods}


def required(pod: KubernetesObject) -> list[KubernetesObject]:
    found = pod["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED)
    return list(found or ())


def test_replicas_and_download_share_a_node_with_its_volume() -> None:
    (term,) = company(model_with(CLAIM))
    assert term["topologyKey"] == "kubernetes.io/hostname"
    selector = term["labelSelector"]
    (values,) = [each["values"] for each in selector["matchExpressions"]]
    pods = pods_of(model_with(CLAIM), ("ReadWriteOnce",))
    assert set(pods) == {"replica", "download", "balancer"}
    assert set(values) == {"replica", "download"}
    for component, pod in pods.items():
        assert required(pod) == ([term] if component in values else [])
        # The first one finds nobody, and Kubernetes lets it go anywhere if it is one of them.
        labels = pod["metadata"]["labels"]
        assert component not in values or selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("name", ["mine", "a" * 200], ids=["short", "long"])
@pytest.mark.parametrize("model", [MINE, SHELF], ids=["cache", "pvc"])
def test_all_that_use_a_claim_of_the_users_share_its_node(
    model: KubernetesObject, name: str
) -> None:
    """Those of other FastGenDeployments, too: they name the same claim."""
    text = msgspec.json.encode(model).replace(b"mine", name.encode())
    raw = msgspec.json.decode(text)
    pods = pods_of(raw, ("ReadWriteOnce",))
    (term,) = required(pods["replica"])
    assert term["topologyKey"] == "kubernetes.io/hostname"
    selected = term["labelSelector"]["matchLabels"]
    assert set(selected) == {"fastgen.dev/claim"}
    assert all(len(value) <= 63 for value in selected.values())
    users = {each for each, pod in pods.items()
             if selected.items() <= pod["metadata"]["labels"].items()}  # fmt: skip
    assert users == {"replica", "download"} & set(pods)
    for each in users:
        assert required(pods[each]) == [term]
    assert required(pods["balancer"]) == []


def test_the_own_affinity_stays() -> None:
    raw = model_with(CLAIM, affinity={"podAffinity": {REQUIRED: [ZONE]}, "nodeAffinity": {"a": 1}})
    assert company(raw)[0] == ZONE
    assert len(company(raw)) == 2
    found = placement(OWNER, parse(raw), IMAGES, ("ReadWriteOnce",))
    assert found["affinity"]["nodeAffinity"] == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "modes"),
    [
        ({"model": {"source": "file:///m.gguf"}}, ()),
        ({"model": {"source": "hf://test/tiny"}}, ()),
        (SHELF, ("ReadOnlyMany",)),
        (SHELF, ("ReadWriteOnce", "ReadOnlyMany")),
        (model_with(CLAIM | {"accessModes": ["ReadWriteMany"]}), ()),
        (MINE, ("ReadWriteMany",)),
        (MINE, ()),
    ],
    ids=["image", "each pod's own", "read by many", "also", "many nodes", "the user's", "unknown"],
)
def test_others_go_where_they_like(raw: KubernetesObject, modes: tuple[str, ...]) -> None:
    assert company(raw, *modes) == []


@pytest.mark.parametrize(
    ("raw", "scaling", "field", "named"),
    [
        (MINE, {"scaling": {"maxReplicas": 2}}, "spec.scaling.maxReplicas", "cache.claimName"),
        (SHELF, {"replicas": 3, "scaling": {"mode": "Disabled"}}, "spec.replicas", "model.source"),
        (SHELF, {"replicas": 3, "scaling": {"mode": "Recommend"}}, "spec.replicas", "model.source"),
        (MINE, {}, "", ""),
        (SHELF, {"scaling": {"mode": "Disabled", "maxReplicas": 4}}, "", ""),
    ],
)
def test_a_claim_of_one_pod_has_one_replica(
    raw: KubernetesObject, scaling: dict[str, Any], field: str, named: str
) -> None:
    spec = parse(raw | scaling)
    for mode in ("ReadWriteOnce", "ReadWriteMany"):
        assert access_problem(OWNER, spec, (mode,)) == ""
    words = access_problem(OWNER, spec, ("ReadWriteOncePod",))
    assert bool(words) == bool(field)
    assert words.startswith(f"{field} is " if field else "")
    assert named in words
    delivery = read(spec, seen(claim("ReadWriteOncePod")))
    problem = claim_failure(OWNER, spec, delivery)
    assert problem == (Problem("ClaimAccessMode", words) if words else None)
