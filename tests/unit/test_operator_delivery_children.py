"""The objects by which a model comes to the replicas, and what the replicas get of it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_downloads import (
    CACHE,
    CACHED,
    COMMIT,
    HUB,
    IN_PODS,
    PATH,
    SETTINGS,
    claim,
    delivered,
    job,
    made,
    read,
    seen,
    with_cache,
)
from observed_objects import OWNER

from fastgen_api import names
from fastgen_api.spec import (
    Cache,
    CacheType,
    Engine,
    Model,
    Resources,
    RetentionPolicy,
    Spec,
)
from fastgen_operator.children import make_children
from fastgen_operator.delivery_pod import without_revision
from fastgen_operator.drift import is_applied, with_applied_annotation
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

JOB = ("Job", job()["metadata"]["name"])
CLAIM = ("PersistentVolumeClaim", "chat-models")
REPLICAS = ("Deployment", "chat-replica")
THERE = (job(ended=100), delivered(), claim())
MIRROR = Settings(Images("r:1", "c:1", pull_secrets=("pull",)), hub_endpoint="https://mirror",
                  download_environment={"HTTPS_PROXY": "http://proxy"})  # fmt: skip


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def download_pod(spec: Spec, settings: Settings = SETTINGS) -> Any:
    children = made(spec, settings=settings)
    (found,) = [each for (kind, _), each in children.items() if kind == "Job"]
    return found["spec"]["template"]["spec"]


def test_a_download_is_one_job_that_tells_how_far_it_is() -> None:
    children = made(CACHED)
    template = children[JOB]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["fastgen-download"]
    assert container["args"] == [
        "--source=hf://owner/name",
        "--cache=/models",
        "--revision=main",
        "--namespace=team",
        "--config-map=chat-model",
        f"--key={JOB[1].removeprefix('chat-model-')}",
    ]
    assert environment(container)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert pod["serviceAccountName"] == "chat-download"
    assert pod["restartPolicy"] == "Never"
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "chat-models"}} in (
        pod["volumes"]
    )
    assert template["metadata"]["labels"][names.COMPONENT_LABEL] == "download"


def test_only_failures_that_may_pass_are_tried_again() -> None:
    found = made(CACHED)[JOB]["spec"]
    assert found["backoffLimit"] >= 20
    assert not found.keys() & {"activeDeadlineSeconds", "ttlSecondsAfterFinished"}
    ignored, failing = found["podFailurePolicy"]["rules"]
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    assert ignored == {"action": "Ignore", "onPodConditions": [disrupted]}
    assert failing["action"] == "FailJob"
    codes = failing["onExitCodes"]
    assert (codes["operator"], 1 in codes["values"], 75 in codes["values"]) == ("In", True, False)
    # Two attempts at a time would write the same files.
    assert found["podReplacementPolicy"] == "Failed"


def test_the_download_may_touch_one_config_map_and_holds_no_data_of_it() -> None:
    children = made(CACHED)
    assert children["Role", "chat-download"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"],
         "resourceNames": ["chat-model"]},
    ]  # fmt: skip
    assert "data" not in children["ConfigMap", "chat-model"]


def test_an_apply_of_the_config_map_finds_nothing_amiss_in_the_downloads_data() -> None:
    marked = with_applied_annotation(made(CACHED)["ConfigMap", "chat-model"])
    found = marked | {"data": delivered()["data"]}
    assert is_applied(marked, found)


def test_the_token_is_where_the_download_is_and_nowhere_else() -> None:
    in_pods = read(IN_PODS, seen(job(IN_PODS, ended=1), delivered(IN_PODS)))
    for spec, delivery in ((CACHED, read(CACHED, seen(*THERE))), (IN_PODS, in_pods)):
        children = [*made(spec).values(), *made(spec, delivery).values()]
        holders = set()
        for child in children:
            pod = child.get("spec", {}).get("template", {}).get("spec", {})
            for each in [*pod.get("initContainers", []), *pod.get("containers", [])]:
                if "HF_TOKEN" in json.dumps(each):
                    holders.add((child["kind"], each["name"]))
        wanted = {("Job", "download")} | (
            {("Deployment", "download")} if spec is IN_PODS else set()
        )
        assert holders == wanted


def test_replicas_read_the_cache_and_cannot_write_it() -> None:
    delivery = read(CACHED, seen(*THERE))
    children = made(CACHED, delivery)
    pod = children[REPLICAS]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert f"--model=file:///models/{PATH}" in container["args"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert environment(container)["HF_HOME"] == "/models/huggingface"
    assert "initContainers" not in pod
    assert JOB not in children, "a Job that is there is left as it is"
    assert JOB in delivery.kept


def test_without_a_cache_each_pod_downloads_what_was_resolved_once() -> None:
    assert "--resolve-only" in download_pod(IN_PODS)["containers"][0]["args"]
    assert CLAIM not in made(IN_PODS)
    delivery = read(IN_PODS, seen(job(IN_PODS, ended=1), delivered(IN_PODS)))
    pod = made(IN_PODS, delivery)[REPLICAS]["spec"]["template"]["spec"]
    (download,) = pod["initContainers"]
    assert download["args"] == [
        "--source=hf://owner/name",
        "--cache=/models",
        f"--revision={COMMIT}",
    ]
    assert {"name": "models", "emptyDir": {}} in pod["volumes"]
    assert f"--model=file:///models/{PATH}" in pod["containers"][0]["args"]
    assert not any(each["name"] == "token" for each in download["volumeMounts"])


@pytest.mark.parametrize(
    ("source", "pinned"),
    [
        ("hf://owner/name@v1", "hf://owner/name"),
        ("hf://owner/name@v1/a.gguf", "hf://owner/name/a.gguf"),
        ("hf://owner/name/a.gguf", "hf://owner/name/a.gguf"),
        ("hf://owner/name", "hf://owner/name"),
    ],
)
def test_a_pinned_commit_outdoes_the_revision_in_the_source(source: str, pinned: str) -> None:
    assert without_revision(source) == pinned


def test_a_job_that_is_made_again_brings_the_commit_that_was_pinned() -> None:
    spec = Spec(Model("hf://owner/name@main", cache=CACHE))
    there = (job(spec, ended=100), delivered(spec), claim())
    deployment = made(spec, read(spec, seen(*there)))[REPLICAS]
    lost = read(spec, seen(deployment, claim("claim-2")))
    again = made(spec, lost)
    (found,) = [each for (kind, _), each in again.items() if kind == "Job"]
    arguments = found["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--source=hf://owner/name", f"--revision={COMMIT}"} <= set(arguments)
    # It is no other Job for that: a later reconcile leaves it alone.
    assert found["metadata"]["annotations"] == job(spec)["metadata"]["annotations"]


def test_a_claim_of_the_users_is_read_only() -> None:
    spec = Spec(Model("pvc://shelf/a model/x#1.gguf"))
    there = claim(metadata={"name": "shelf", "uid": "u"})
    children = made(spec, read(spec, seen(there)))
    pod = children[REPLICAS]["spec"]["template"]["spec"]
    volume = {"claimName": "shelf", "readOnly": True}
    assert {"name": "models", "persistentVolumeClaim": volume} in pod["volumes"]
    assert "--model=file:///models/a%20model/x%231.gguf" in pod["containers"][0]["args"]
    kinds = {kind for kind, _ in children}
    assert not kinds & {"Job", "PersistentVolumeClaim"}
    assert ("ServiceAccount", "chat-download") not in children


def test_a_retained_claim_outlives_its_owner_and_a_deleted_one_goes_with_it() -> None:
    assert "ownerReferences" not in made(CACHED)[CLAIM]["metadata"]
    owned = made(with_cache(retention_policy=RetentionPolicy.DELETE))[CLAIM]
    assert owned["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid
    assert owned["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"size": "30Gi"}, "30Gi"), ({"size": "1Gi"}, "20Gi"), ({"size": "20480Mi"}, "20Gi"),
     ({"storage_class_name": "slow", "access_modes": ("ReadWriteOnce",)}, "20Gi"),
     ({"storage_class_name": None}, "20Gi")],
)  # fmt: skip
def test_of_a_claim_that_exists_only_the_size_grows(changes: dict[str, Any], size: str) -> None:
    spec = with_cache(**changes)
    found = made(spec, read(spec, seen(claim())))[CLAIM]["spec"]
    assert found["resources"]["requests"]["storage"] == size
    assert (found["storageClassName"], found["accessModes"]) == ("fast", ["ReadWriteMany"])


def test_a_claim_of_the_users_own_is_used_and_not_made() -> None:
    spec = Spec(Model("hf://o/n", cache=Cache(CacheType.PERSISTENT_VOLUME_CLAIM,
                                              claim_name="mine")))  # fmt: skip
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in made(spec))
    volumes = download_pod(spec)["volumes"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "mine"}} in volumes


def test_the_download_runs_where_the_replicas_do_and_needs_no_gpu() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    spec = msgspec.structs.replace(
        CACHED,
        node_selector={"pool": "gpu"},
        tolerations=(toleration,),
        affinity={"nodeAffinity": {}},
        image="mine:1",
        engine=Engine(tensor_parallel_size=2),
        resources=Resources(limits={"nvidia.com/gpu": "2"}),
    )
    pod = download_pod(spec, MIRROR)
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert toleration in pod["tolerations"]
    assert any(each["key"] == "nvidia.com/gpu" for each in pod["tolerations"])
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    (container,) = pod["containers"]
    assert container["image"] == "mine:1"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_a_mirror_of_the_hub_is_told_to_whoever_downloads() -> None:
    delivery = read(IN_PODS, seen(job(IN_PODS, ended=1), delivered(IN_PODS)), MIRROR)
    pod = made(IN_PODS, delivery, MIRROR)[REPLICAS]["spec"]["template"]["spec"]
    for container in (download_pod(IN_PODS, MIRROR)["containers"][0], pod["initContainers"][0]):
        assert environment(container)["HF_ENDPOINT"] == "https://mirror"
        assert environment(container)["HTTPS_PROXY"] == "http://proxy"
    assert not environment(pod["containers"][0]).keys() & {"HF_ENDPOINT", "HTTPS_PROXY"}
    assert "HF_ENDPOINT" not in environment(download_pod(IN_PODS)["containers"][0])


def test_downloads_are_confined() -> None:
    delivery = read(IN_PODS, seen(job(IN_PODS, ended=1), delivered(IN_PODS)))
    replicas = made(IN_PODS, delivery)[REPLICAS]["spec"]["template"]["spec"]
    for pod in (download_pod(CACHED), replicas):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for each in [*pod["containers"], *pod.get("initContainers", [])]:
            security = each["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


NAMES = st.from_regex(rf"[a-z][-a-z0-9]{{0,{names.MAX_NAME_LENGTH - 2}}}[a-z0-9]", fullmatch=True)


@given(name=NAMES, repository=st.from_regex(r"[A-Za-z0-9._-]{1,90}", fullmatch=True))
def test_names_of_downloads_stay_in_their_bounds(name: str, repository: str) -> None:
    owner = Owner(name, "team", "uid-1")
    for model in (HUB, CACHED.model):
        spec = Spec(msgspec.structs.replace(model, source=f"hf://owner/{repository}"))
        children = make_children(owner, spec, SETTINGS)
        identities = {(each["kind"], each["metadata"]["name"]) for each in children}
        assert len(identities) == len(children)
        for each in children:
            assert len(each["metadata"]["name"]) <= 63
            assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())
