"""What of `spec.podTemplate` reaches the pod that downloads a model."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_downloads import (
    CACHED,
    IN_PODS,
    SETTINGS,
    claim,
    delivered,
    job,
    made,
    pod,
    read,
    seen,
)
from observed_objects import OWNER

from fastgen_api.spec import Model, PodTemplate, Spec
from fastgen_operator.delivery import JobStep
from fastgen_operator.delivery_children import job_marks
from fastgen_operator.download_template import POD_FIELDS, of_download
from fastgen_operator.observed import Problem
from fastgen_operator.privileges import Allowed
from fastgen_operator.reconcile import declared_children
from fastgen_operator.settings import Settings

TOLERATION = {"key": "pool", "operator": "Exists"}
NODES: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}},
    "dnsConfig": {"nameservers": ["10.0.0.10"]},
    "dnsPolicy": "None",
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"pool": "models"},
    "priorityClassName": "high",
    "schedulerName": "mine",
    "tolerations": [TOLERATION],
}
OTHERS: dict[str, Any] = {
    "serviceAccountName": "mine",
    "automountServiceAccountToken": True,
    "hostNetwork": True,
    "nodeName": "node-1",
    "runtimeClassName": "nvidia",
    "topologySpreadConstraints": [{"maxSkew": 1}],
    "terminationGracePeriodSeconds": 600,
}
PROXY = {"name": "HTTPS_PROXY", "value": "http://proxy"}
MOUNT = {"name": "ca", "mountPath": "/ca"}
CA = {"name": "ca", "configMap": {"name": "ca"}}
OTHER_VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
SIDE = {"name": "side", "image": "side:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}


def templated(spec: Spec, **template: Any) -> Spec:
    fields = {"metadata": template.pop("metadata", {}), "spec": template}
    return msgspec.structs.replace(spec, pod_template=PodTemplate(**fields))


def allowing(allowed: Allowed) -> Settings:
    return Settings(SETTINGS.images, pod_templates=allowed)


def download(**container: Any) -> list[dict[str, Any]]:
    return [SIDE, {"name": "download"} | container]


def job_pod(spec: Spec) -> Any:
    (found,) = [each for (kind, _), each in made(spec).items() if kind == "Job"]
    return found["spec"]["template"]


def replica_pod(spec: Spec) -> Any:
    there = (job(spec, ended=1), delivered(spec), claim())
    delivery = read(spec, seen(*there))
    return made(spec, delivery)["Deployment", "chat-replica"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("spec", [CACHED, IN_PODS], ids=["cache", "each pod"])
def test_nodes_images_network_and_user_are_those_of_the_replicas(spec: Spec) -> None:
    plain = job_pod(spec)["spec"]
    user = {"securityContext": {"runAsUser": 1000, "supplementalGroups": [7]}}
    changed = templated(spec, **NODES, **user)
    found, replica = job_pod(changed)["spec"], replica_pod(changed)
    assert {field: found[field] for field in NODES} == NODES
    assert {field: replica[field] for field in NODES} == NODES
    assert found["securityContext"] == plain["securityContext"] | user["securityContext"]
    assert set(NODES) | set(user) == set(POD_FIELDS), "each field is tested"
    rest = found.keys() - NODES.keys() - {"securityContext"}
    assert {field: found[field] for field in rest} == {field: plain[field] for field in rest}


def test_what_is_the_replicas_alone_stays_away() -> None:
    labelled = {"labels": {"app": "mine"}, "annotations": {"sidecar": "true"}}
    changed = templated(
        CACHED,
        metadata=labelled,
        containers=[{"name": "runtime", "env": [PROXY]}, SIDE],
        initContainers=[SIDE],
        volumes=[OTHER_VOLUME],
        **OTHERS,
    )
    assert job_pod(changed) == job_pod(CACHED)
    assert job_marks(OWNER, changed, SETTINGS, ()) == job_marks(OWNER, CACHED, SETTINGS, ())


def test_the_container_that_downloads_is_one_wherever_it_runs() -> None:
    fields = {
        "initContainers": download(env=[PROXY], volumeMounts=[MOUNT]),
        "volumes": [OTHER_VOLUME, CA],
    }
    for spec in (CACHED, IN_PODS):
        plain = job_pod(spec)["spec"]
        found = job_pod(templated(spec, **fields))["spec"]
        (before,), (container,) = plain["containers"], found["containers"]
        assert container["env"] == [*before["env"], PROXY]
        assert container["volumeMounts"] == [*before["volumeMounts"], MOUNT]
        assert found["volumes"] == [*plain["volumes"], CA]
        assert "initContainers" not in found
        replica = replica_pod(templated(spec, **fields))
        inits = [each["name"] for each in replica["initContainers"]]
        assert inits == (["side"] if spec is CACHED else ["download", "side"])
    only = templated(CACHED, initContainers=[{"name": "download", "env": [PROXY]}])
    assert replica_pod(only) == replica_pod(CACHED)


@pytest.mark.parametrize(
    ("fields", "allowed", "reason", "path"),
    [
        ({"initContainers": download(command=["sh"])}, Allowed.ANY, "PodTemplateInvalid",
         "spec.podTemplate.spec.initContainers[1].command"),
        ({"initContainers": download(volumeMounts=[{"name": "x", "mountPath": "/models"}])},
         Allowed.ANY, "PodTemplateInvalid",
         "spec.podTemplate.spec.initContainers[1].volumeMounts[0]"),
        ({"initContainers": download(volumeMounts=[{"name": "token", "mountPath": "/x"}]),
          "volumes": [CA, {"name": "token", "emptyDir": {}}]}, Allowed.ANY, "PodTemplateInvalid",
         "spec.podTemplate.spec.volumes[1]"),
        ({"initContainers": download(env=[{"value": "x"}])}, Allowed.ANY, "PodTemplateInvalid",
         "spec.podTemplate.spec.initContainers[1].env[0]"),
        ({"initContainers": download(securityContext={"privileged": True})},
         Allowed.UNPRIVILEGED, "PodTemplateForbidden",
         "spec.podTemplate.spec.initContainers[1].securityContext.privileged"),
        ({"initContainers": download(env=[PROXY])}, Allowed.NONE, "PodTemplateForbidden",
         "spec.podTemplate is not allowed"),
    ],
)  # fmt: skip
def test_what_a_download_must_keep_is_told_by_its_place(
    fields: dict[str, Any], allowed: Allowed, reason: str, path: str
) -> None:
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    fields["initContainers"][0] = SIDE | {"securityContext": confined}
    found = declared_children(OWNER, templated(CACHED, **fields), allowing(allowed))
    assert isinstance(found, Problem)
    assert found.reason == reason
    assert path in found.message


def test_an_unprivileged_template_keeps_the_downloads_own_token() -> None:
    fields = {"initContainers": [{"name": "download", "env": [PROXY], "volumeMounts": [MOUNT]}],
              "volumes": [CA], **NODES}  # fmt: skip
    children = declared_children(OWNER, templated(CACHED, **fields), allowing(Allowed.UNPRIVILEGED))
    assert not isinstance(children, Problem)
    (found,) = [each for each in children if each["kind"] == "Job"]
    names = [each["name"] for each in found["spec"]["template"]["spec"]["volumes"]]
    assert names == ["models", "tmp", "token", "ca"]


def test_a_download_at_work_starts_anew_only_for_what_concerns_it() -> None:
    other = templated(CACHED, containers=[SIDE], serviceAccountName="mine")
    for spec, step in ((templated(CACHED, **NODES), JobStep.REPLACE), (other, JobStep.KEEP)):
        assert read(spec, seen(job(), claim(), pods=(pod(),))).job is step


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["download", "ca"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "volumeMounts", "env", "mountPath"]), inner)
    ),
    max_leaves=8,
)


@given(spec=st.dictionaries(st.sampled_from([*POD_FIELDS, "initContainers", "volumes"]), JUNK))
def test_whatever_the_template_holds_it_is_taken_or_refused(spec: dict[str, Any]) -> None:
    of_download({"spec": spec})
    changed = templated(Spec(Model("hf://owner/name")), **spec)
    assert read(changed, seen()).job is JobStep.MAKE
    assert declared_children(OWNER, changed, SETTINGS)
