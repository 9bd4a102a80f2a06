"""What `spec.podTemplate` must leave alone, and what the operator's settings forbid."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_api.spec import Model, PodTemplate, Spec, parse
from fastgen_operator.children import make_children
from fastgen_operator.merge import TemplateError, merge
from fastgen_operator.owner import Owner
from fastgen_operator.privileges import Allowed, PrivilegeError, check_privileges
from fastgen_operator.reconcile import declared_children
from fastgen_operator.settings import Images, Settings
from fastgen_operator.template_contract import check_contract

IMAGES = Images("runtime:1", "control:1")
OWNER = Owner("chat", "team", "uid-1")
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def made(
    theirs: dict[str, Any], allowed: Allowed = Allowed.ANY, source: str = "file:///models/a.gguf"
) -> Any:
    template = PodTemplate(metadata=theirs.get("metadata", {}), spec=theirs.get("spec", {}))
    spec = Spec(Model(source), pod_template=template)
    children = make_children(OWNER, spec, Settings(IMAGES, pod_templates=allowed))
    (found,) = [each for each in children if each["metadata"]["name"] == "chat-replica"
                and each["kind"] == "Deployment"] or [None]  # fmt: skip
    return found


def runtime(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "runtime"} | fields]}}


def sidecar(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "side", "image": "side:1"} | fields]}}


BREACHES: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata": {"name": "mine"}}, "metadata.name", "only labels and annotations"),
    ({"metadata": {"finalizers": ["a/b"]}}, "metadata.finalizers", "only labels and annotations"),
    ({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}},
     'metadata.labels["app.kubernetes.io/instance"]', "finds its pods by this label"),
    ({"metadata": {"labels": {"fastgen.dev/guarded": "false"}}},
     'metadata.labels["fastgen.dev/guarded"]', "finds its pods by this label"),
    ({"metadata": {"annotations": {"fastgen.dev/template": "x"}}},
     'metadata.annotations["fastgen.dev/template"]', "are the operator's"),
    ({"spec": {"containers": None}}, "spec.containers", "a list is expected"),
    ({"spec": {"volumes": {}}}, "spec.volumes", "a list is expected"),
    ({"spec": {"terminationGracePeriodSeconds": 30}}, "spec.terminationGracePeriodSeconds",
     "spec.rollout.drainSeconds"),
    ({"spec": {"terminationGracePeriodSeconds": None}}, "spec.terminationGracePeriodSeconds",
     "spec.rollout.drainSeconds"),
    ({"metadata": {"labels": None}}, "metadata.labels", "an object is expected"),
    (runtime(ports=None), "spec.containers[0].ports", "a list is expected"),
    (runtime(env=None), "spec.containers[0].env", "a list is expected"),
    (runtime(volumeMounts={}), "spec.containers[0].volumeMounts", "a list is expected"),
    (sidecar(resources={"limits": {"memory": "1e999999999999"}}),
     "spec.containers[0].resources.limits.memory", "exponent of at most 18"),
    (runtime(resources={"requests": {"cpu": "1E-0019"}}),
     "spec.containers[0].resources.requests.cpu", "exponent of at most 18"),
    ({"spec": {"volumes": [{"name": "x", "emptyDir": {"sizeLimit": "9" * 33}}]}},
     "spec.volumes[0].emptyDir.sizeLimit", "at most 18 and 32 characters"),
    ({"spec": {"volumes": [{"name": "x", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "resources": {"requests": {"storage": "1e19"}}}}}}]}},
     "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
     "exponent of at most 18"),
    ({"spec": {"overhead": {"cpu": 1e300}}}, "spec.overhead.cpu", "exponent of at most 18"),
    (runtime(command=["sleep"]), "spec.containers[0].command", "the operator says what runs"),
    (runtime(args=["--x"]), "spec.containers[0].args", "spec.engine"),
    (runtime(terminationMessagePath="/x"), "spec.containers[0].terminationMessagePath", "why"),
    (runtime(lifecycle={"preStop": {"exec": {}}}), "spec.containers[0].lifecycle.preStop",
     "balancers need its seconds"),
    (runtime(lifecycle=None), "spec.containers[0].lifecycle.preStop", "balancers"),
    (runtime(env=[{"name": "A"}, {"name": "POD_NAME", "value": "x"}]),
     "spec.containers[0].env[1]", "the operator sets POD_NAME"),
    (runtime(volumeMounts=[{"name": "x", "mountPath": "/etc/fastgen"}]),
     "spec.containers[0].volumeMounts[0]", "mounts its own at /etc/fastgen"),
    (runtime(ports=[{"containerPort": 8000, "name": "api"}]), "spec.containers[0].ports[0]",
     "http (8000), grpc (9000), metrics (9090) are the replica's own"),
    (sidecar(ports=[{"containerPort": 1}, {"containerPort": 7, "name": "http"}]),
     "spec.containers[0].ports[1]", "are the replica's own"),
    ({"spec": {"initContainers": [{"name": "first", "image": "a", "restartPolicy": "Always",
                                   "ports": [{"containerPort": 9090}]}]}},
     "spec.initContainers[0].ports[0]", "are the replica's own"),
    ({"spec": {"volumes": [{"name": "x"}, {"name": "slo", "emptyDir": {}}]}},
     "spec.volumes[1]", "the volume slo is the operator's"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "field", "why"), BREACHES, ids=[each[1] for each in BREACHES])
def test_what_the_operator_relies_on_cannot_be_set(
    theirs: dict[str, Any], field: str, why: str
) -> None:
    with pytest.raises(TemplateError) as refusal:
        made(theirs)
    message = str(refusal.value)
    assert message.startswith(f"spec.podTemplate.{field} cannot be set: ")
    assert why in message
    assert "\n" not in message


DOWNLOAD_BREACHES: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"initContainers": [{"name": "download", "args": []}]}},
     "spec.initContainers[0].args"),
    ({"spec": {"volumes": [{"name": "models", "emptyDir": {}}]}}, "spec.volumes[0]"),
    (runtime(volumeMounts=[{"name": "x", "mountPath": "/models"}]),
     "spec.containers[0].volumeMounts[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "field"), DOWNLOAD_BREACHES)
def test_a_download_cannot_be_changed_either(theirs: dict[str, Any], field: str) -> None:
    with pytest.raises(TemplateError, match="cannot be set") as refusal:
        made(theirs, source="hf://owner/name")
    assert f"spec.podTemplate.{field} " in str(refusal.value)
    made({"spec": {"volumes": [{"name": "models", "emptyDir": {}}]}})


RIGHT: list[dict[str, Any]] = [
    {"metadata": {"labels": {"app.kubernetes.io/instance": "chat", "team": "a"},
                  "annotations": {"prometheus.io/scrape": "false"}}},
    {"spec": {"terminationGracePeriodSeconds": 900, "hostNetwork": True}},
    runtime(env=[{"name": "HOME", "value": "/x"}], lifecycle={"postStart": {"exec": {}}},
            livenessProbe={"failureThreshold": 20}, ports=[{"containerPort": 4000}]),
    sidecar(command=["run"], args=["-v"], lifecycle={"preStop": {"sleep": {"seconds": 5}}},
            ports=[{"containerPort": 4000, "name": "side"}]),
    {"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/fast"}}]}},
]  # fmt: skip


@pytest.mark.parametrize("theirs", RIGHT)
def test_the_rest_may_be_set(theirs: dict[str, Any]) -> None:
    made(theirs)


def test_a_hub_token_and_a_collector_reach_the_runtime_by_its_environment() -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    collector = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    pod = made(runtime(env=[token, collector]))["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["runtime"]
    assert pod["containers"][0]["env"][-2:] == [token, collector]
    assert pod["containers"][0]["command"] == ["fastgen-runtime"]


FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    ({"spec": {"nodeName": "a"}}, "spec.nodeName"),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
    ({"spec": {"securityContext": None}}, "spec.containers[0].securityContext.runAsNonRoot"),
    (runtime(securityContext={"privileged": True}),
     "spec.containers[0].securityContext.privileged"),
    (sidecar(), "spec.containers[0].securityContext.allowPrivilegeEscalation"),
    ({"spec": {"volumes": [{"name": "a", "emptyDir": {}},
                           {"name": "tmp", "hostPath": {"path": "/"}}]}},
     "spec.volumes[1].hostPath"),
    ({"spec": {"volumes": [{"name": "a", "projected": {
        "sources": [{"serviceAccountToken": {"path": "token"}}]}}]}},
     "spec.volumes[0].projected.sources[0].serviceAccountToken"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "field"), FORBIDDEN)
def test_privileges_are_refused_by_name_where_only_unprivileged_templates_are_allowed(
    theirs: dict[str, Any], field: str
) -> None:
    made(theirs)
    with pytest.raises(PrivilegeError) as refusal:
        made(theirs, Allowed.UNPRIVILEGED)
    assert str(refusal.value).startswith(f"spec.podTemplate.{field} is not allowed: ")
    assert "podTemplate.allow to Unprivileged" in str(refusal.value)


@pytest.mark.parametrize(
    "theirs",
    [
        {},
        {"metadata": {"labels": {"team": "a"}}},
        sidecar(securityContext=CONFINED),
        runtime(env=[{"name": "HOME", "value": "/x"}]),
        {"spec": {"schedulerName": "mine", "volumes": [{"name": "a", "secret": {}}]}},
    ],
)
@pytest.mark.parametrize("source", ["file:///models/a.gguf", "hf://owner/name", "pvc://claim/a"])
def test_what_is_unprivileged_is_allowed(theirs: dict[str, Any], source: str) -> None:
    made(theirs, Allowed.UNPRIVILEGED, source)


def test_none_means_none() -> None:
    made({}, Allowed.NONE)
    with pytest.raises(PrivilegeError, match=r"spec\.podTemplate is not allowed: .*remove it"):
        made({"metadata": {"labels": {"team": "a"}}}, Allowed.NONE)


@pytest.mark.parametrize(
    ("allowed", "template", "reason"),
    [
        (Allowed.ANY, {"spec": {"containers": 5}}, "PodTemplateInvalid"),
        (Allowed.ANY, {"spec": {"volumes": [{"emptyDir": {}}]}}, "PodTemplateInvalid"),
        (Allowed.UNPRIVILEGED, {"spec": {"hostPID": True}}, "PodTemplateForbidden"),
    ],
)
def test_the_condition_says_which_it_is(
    allowed: Allowed, template: dict[str, Any], reason: str
) -> None:
    spec = parse({"model": {"source": "file:///m"}, "podTemplate": template})
    problem = declared_children(OWNER, spec, Settings(IMAGES, pod_templates=allowed))
    assert getattr(problem, "reason", None) == reason


def test_no_container_is_named_twice() -> None:
    twice = [{"name": "side", "env": [None]}, {"name": "side", "env": []}]
    with pytest.raises(TemplateError, match=r"containers\[1\]: `name` side is there twice"):
        made({"spec": {"containers": twice}})


def test_a_template_of_nonsense_is_left_to_the_api_server() -> None:
    nonsense = {"spec": {"containers": ["x"], "securityContext": 5, "initContainers": [3]}}
    with pytest.raises(TemplateError, match=r"containers\[0\]: expected an object with `name`"):
        made(nonsense)
    for theirs in ({"spec": {"securityContext": 5}}, sidecar(ports=5, env={}, lifecycle={})):
        msgspec.json.encode(made(theirs))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9000) | st.sampled_from(["runtime", "http", "ALL"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("name"), inner),
    max_leaves=3,
)


def likely(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return usual | usual | usual | ANYTHING


def fields(**usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return likely(
        st.fixed_dictionaries({}, optional={name: likely(each) for name, each in usual.items()})
    )


def lists(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(item, max_size=2)


CONTEXT = fields(
    capabilities=fields(add=lists(ANYTHING), drop=lists(ANYTHING)),
    seccompProfile=fields(type=ANYTHING),
    seLinuxOptions=fields(type=ANYTHING, user=ANYTHING),
    sysctls=lists(fields(name=ANYTHING)),
    windowsOptions=ANYTHING,
)
CONTAINER = fields(
    name=st.sampled_from(["runtime", "side"]),
    env=lists(fields(name=ANYTHING)),
    ports=lists(fields(name=ANYTHING, containerPort=ANYTHING, protocol=ANYTHING)),
    volumeMounts=lists(fields(mountPath=ANYTHING)),
    securityContext=CONTEXT,
    lifecycle=fields(preStop=ANYTHING, postStart=fields(httpGet=fields(host=ANYTHING))),
    livenessProbe=fields(tcpSocket=ANYTHING),
)
TEMPLATE = st.fixed_dictionaries({}, optional={
    "metadata": st.dictionaries(st.sampled_from(["labels", "annotations"]), ANYTHING),
    "spec": st.fixed_dictionaries({}, optional={
        "containers": likely(lists(CONTAINER)),
        "initContainers": likely(lists(CONTAINER)),
        "volumes": likely(lists(fields(name=ANYTHING, projected=fields(sources=ANYTHING)))),
        "securityContext": CONTEXT,
        "terminationGracePeriodSeconds": ANYTHING,
        "serviceAccountName": ANYTHING,
    }),
})  # fmt: skip
OURS = made({})["spec"]["template"]


@given(theirs=TEMPLATE)
@settings(max_examples=300)
def test_no_template_trips_the_operator(theirs: dict[str, Any]) -> None:
    """What is no pod template at all is refused in a sentence, or left to the API server."""
    with contextlib.suppress(TemplateError):
        check_contract(OURS, theirs)
    with contextlib.suppress(TemplateError):
        merged = merge(OURS, theirs, "spec.podTemplate")
        check_privileges(Allowed.UNPRIVILEGED, merged, theirs, "chat-replica")
