"""Where pods go that share a volume which one node at a time may have."""

from typing import Any

import pytest

from fastgen_api.spec import KubernetesObject, parse
from fastgen_operator.children import make_children
from fastgen_operator.delivery import Delivered, Delivery, JobStep
from fastgen_operator.owner import Owner
from fastgen_operator.placement import placement
from fastgen_operator.settings import Images, Settings

OWNER = Owner("chat", "team", "uid-1")
IMAGES = Images("runtime:1", "control:1")
CLAIM = {"type": "PersistentVolumeClaim", "size": "1Gi"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}


def model_with(cache: dict[str, Any], **more: Any) -> KubernetesObject:
    return {"model": {"source": "hf://test/tiny", "cache": cache}, **more}


def company(raw: KubernetesObject) -> list[KubernetesObject]:
    """The pod affinities that a replica requires."""
    affinity = placement(OWNER, parse(raw), IMAGES).get("affinity") or {}
    return list((affinity.get("podAffinity") or {}).get(REQUIRED) or ())


def test_replicas_and_download_share_a_node_with_its_volume() -> None:
    (term,) = company(model_with(CLAIM))
    assert term["topologyKey"] == "kubernetes.io/hostname"
    children = make_children(
        OWNER,
        parse(model_with(CLAIM)),
        Settings(IMAGES),
        Delivery(Delivered(key="", path="m"), job=JobStep.MAKE),
    )
    pods = [each["spec"]["template"] for each in children if each["kind"] in ("Job", "Deployment")]
    selector = term["labelSelector"]
    (values,) = [each["values"] for each in selector["matchExpressions"]]
    for pod in pods:
        labels = pod["metadata"]["labels"]
        is_user = labels["app.kubernetes.io/component"] in values
        assert is_user == (labels["app.kubernetes.io/component"] != "balancer")
        found = pod["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED)
        assert (found == [term]) == is_user
        # The first one finds nobody, and Kubernetes lets it go anywhere if it is one of them.
        assert not is_user or selector["matchLabels"].items() <= labels.items()


def test_the_own_affinity_stays() -> None:
    raw = model_with(CLAIM, affinity={"podAffinity": {REQUIRED: [ZONE]}, "nodeAffinity": {"a": 1}})
    assert company(raw)[0] == ZONE
    assert len(company(raw)) == 2
    assert placement(OWNER, parse(raw), IMAGES)["affinity"]["nodeAffinity"] == {"a": 1}


@pytest.mark.parametrize(
    "raw",
    [
        {"model": {"source": "file:///m.gguf"}},
        {"model": {"source": "hf://test/tiny"}},
        {"model": {"source": "pvc://mine/m.gguf"}},
        model_with(CLAIM | {"accessModes": ["ReadWriteMany"]}),
        model_with({"type": "PersistentVolumeClaim", "claimName": "mine"}),
    ],
    ids=["image", "each pod's own", "the user's claim", "many nodes", "the user's cache"],
)
def test_others_go_where_they_like(raw: KubernetesObject) -> None:
    assert company(raw) == []
