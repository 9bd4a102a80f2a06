"""`spec.podTemplate` against a real API server: what is refused, by whom, and in whose words."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import wait_until
from commands import Commands
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from operator_process import OperatorProcess
from operator_questions import is_stalled

from fastgen_api.spec import Model, PodTemplate, Spec
from fastgen_operator.children import make_children
from fastgen_operator.owner import Owner
from fastgen_operator.privileges import privileges
from fastgen_operator.settings import Images, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(name: str = "side", **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name} | fields]}}


@pytest.fixture
def plain(operator: OperatorProcess, chat: str) -> Iterator[str]:
    """The FastGenDeployment without a pod template, before and after."""
    yield chat
    operator.kubectl("patch", "fgd", chat, "--type=json", "-p",
                     '[{"op": "remove", "path": "/spec/podTemplate"}]')  # fmt: skip
    wait_until("no longer stalled", lambda: not is_stalled(operator, chat), seconds=30)


def deployment(operator: OperatorProcess) -> Any:
    return operator.get("deployment", "chat-replica")


REFUSED = [
    (container(), "PodTemplateRejected", "spec.podTemplate.spec.containers[0].image: Required"),
    (container("runtime", enviroment=[]), "PodTemplateRejected",
     "spec.podTemplate.spec.containers[0].enviroment: field not declared in schema"),
    (container("runtime", volumeMounts=[{"name": "none", "mountPath": "/x"}]),
     "PodTemplateRejected", "spec.podTemplate.spec.containers[0].volumeMounts[0].name: Not found"),
    (container("runtime", command=["sleep"]), "PodTemplateInvalid",
     "spec.podTemplate.spec.containers[0].command cannot be set"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "reason", "words"), REFUSED, ids=[each[2].rpartition(".")[2] for each in REFUSED]
)
def test_a_bad_template_is_told_and_nothing_of_the_new_spec_is_applied(
    operator: OperatorProcess, plain: str, template: dict[str, Any], reason: str, words: str
) -> None:
    before = deployment(operator)["metadata"]["generation"]
    percent = operator.get("configmap", "chat-slo")["data"]["slo.json"]
    operator.patch(plain, {"podTemplate": template, "slo": {"targetPercent": "12.5"}})
    stalled = wait_until("Stalled", lambda: is_stalled(operator, plain), seconds=30)
    assert stalled["reason"] == reason
    assert words in stalled["message"]
    resource = operator.get("fgd", plain)
    assert resource["status"]["observedGeneration"] == resource["metadata"]["generation"]
    assert operator.condition(plain, "Ready")["reason"] == reason
    assert operator.condition(plain, "Available")["reason"] == "NoReplicaReady"
    assert deployment(operator)["metadata"]["generation"] == before
    assert operator.get("configmap", "chat-slo")["data"]["slo.json"] == percent
    operator.patch(plain, {"podTemplate": {"spec": None}, "slo": {"targetPercent": "99"}})


def test_a_token_and_a_collector_reach_the_runtime_by_its_environment(
    operator: OperatorProcess, plain: str
) -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    collector = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    operator.patch(plain, {"podTemplate": container("runtime", env=[token, collector])})

    def environment() -> dict[str, Any]:
        (runtime,) = deployment(operator)["spec"]["template"]["spec"]["containers"]
        return {each["name"]: each for each in runtime["env"]}

    wait_until("the token", lambda: environment().get("HF_TOKEN") == token, seconds=30)
    assert environment()["OTEL_EXPORTER_OTLP_ENDPOINT"] == collector
    assert "POD_NAME" in environment()


def test_an_administrator_may_refuse_privileges(operator: OperatorProcess, plain: str) -> None:
    operator.stop()
    operator.start({"FASTGEN_POD_TEMPLATES": "Unprivileged"})
    try:
        before = deployment(operator)["metadata"]["generation"]
        operator.patch(plain, {"podTemplate": {"spec": {"hostNetwork": True}}})
        stalled = wait_until("Stalled", lambda: is_stalled(operator, plain), seconds=30)
        assert stalled["reason"] == "PodTemplateForbidden"
        assert stalled["message"].startswith("spec.podTemplate.spec.hostNetwork is not allowed: ")
        assert deployment(operator)["metadata"]["generation"] == before
        harmless = {"spec": {"hostNetwork": None, "schedulerName": "other"}}
        operator.patch(plain, {"podTemplate": harmless})
        wait_until(
            "the harmless one",
            lambda: deployment(operator)["spec"]["template"]["spec"]["schedulerName"] == "other",
            seconds=30,
        )
    finally:
        operator.stop()
        operator.start()


@pytest.fixture(scope="module")
def restricted(cluster: Commands, namespace: str) -> Client:
    """Asks the API server about pods in a namespace under the restricted standard."""
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    return Client(KubeConfig.from_file(cluster.kubeconfig), namespace=namespace, dry_run=True)


def merged(theirs: dict[str, Any], source: str = "file:///models/a.gguf") -> Any:
    template = PodTemplate(metadata=theirs.get("metadata", {}), spec=theirs.get("spec", {}))
    made = make_children(
        Owner("chat", "team", "u"),
        Spec(Model(source), pod_template=template),
        Settings(Images("r:1", "c:1")),
    )
    return next(
        child["spec"]["template"]
        for child in made
        if (child["kind"], child["metadata"]["name"]) == ("Deployment", "chat-replica")
    )


def side(**context: Any) -> dict[str, Any]:
    return container(image="side:1", securityContext=CONFINED | context)


TEMPLATES: list[dict[str, Any]] = [
    {},
    side(),
    side(runAsNonRoot=True, runAsUser=1000, seccompProfile={"type": "Localhost",
                                                            "localhostProfile": "a"}),
    side(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    side(seLinuxOptions={"type": "container_t", "level": "s0"}),
    {"spec": {"volumes": [{"name": "a", "secret": {"secretName": "s"}},
                          {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]}},
    {"spec": {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies",
                                               "value": "1"}]}}},
    {"metadata": {"annotations": {
        "container.apparmor.security.beta.kubernetes.io/runtime": "localhost/mine"}}},
    # Privileged from here on.
    {"spec": {"hostNetwork": True}},
    {"spec": {"hostPID": True}},
    {"spec": {"hostIPC": True}},
    {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}},
    {"spec": {"volumes": [{"name": "a", "nfs": {"server": "s", "path": "/"}}]}},
    {"spec": {"securityContext": {"runAsUser": 0}}},
    {"spec": {"securityContext": {"runAsNonRoot": False}}},
    {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
    {"spec": {"securityContext": {"seccompProfile": None}}},
    {"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}},
    {"spec": {"securityContext": {"seLinuxOptions": {"user": "system_u"}}}},
    {"metadata": {"annotations": {
        "container.apparmor.security.beta.kubernetes.io/runtime": "unconfined"}}},
    container(image="side:1"),
    container("runtime", securityContext=None),
    side(privileged=True, allowPrivilegeEscalation=True),
    side(allowPrivilegeEscalation=None),
    side(capabilities={"drop": ["KILL"]}),
    side(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    side(runAsUser=0),
    side(runAsNonRoot=False),
    side(seccompProfile={"type": "Unconfined"}),
    side(appArmorProfile={"type": "Unconfined"}),
    side(seLinuxOptions={"type": "spc_t"}),
    side() | container(image="a", securityContext=CONFINED,
                       ports=[{"containerPort": 80, "hostPort": 80}]),
    container(image="a", securityContext=CONFINED,
              livenessProbe={"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
    container(image="a", securityContext=CONFINED,
              lifecycle={"postStart": {"httpGet": {"port": 1, "host": "10.0.0.1"}}}),
    {"spec": {"initContainers": [{"name": "first", "image": "a"}]}},
]  # fmt: skip


@pytest.mark.parametrize("theirs", TEMPLATES, ids=lambda theirs: json.dumps(theirs)[:60])
def test_unprivileged_is_what_the_restricted_standard_admits(
    restricted: Client, theirs: dict[str, Any]
) -> None:
    template = merged(theirs)
    pod = {name: each for name, each in template["spec"].items() if name != "serviceAccountName"}
    metadata = ObjectMeta.from_dict(template["metadata"] | {"name": "tried"})
    refusal = ""
    try:
        restricted.create(Pod(metadata=metadata, spec=PodSpec.from_dict(pod)))
    except ApiError as error:
        refusal = str(error)
        assert 'violates PodSecurity "restricted' in refusal
    assert bool(list(privileges(template, "chat-replica"))) is bool(refusal), refusal
