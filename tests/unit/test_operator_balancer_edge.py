"""API keys, TLS and the endpoint picker in the manifests of the balancer."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fastgen_api.names import Component
from fastgen_api.spec import Balancer, Model, SecretRef, Spec
from fastgen_balancer.main import app
from fastgen_operator.balancer_edge import declared_edge
from fastgen_operator.children import make_children
from fastgen_operator.fingerprint import DECLARED_ANNOTATION
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner
from fastgen_operator.remedies import mount_remedy
from fastgen_operator.settings import Images, Settings
from fastgen_operator.status import status_of

SETTINGS = Settings(Images("runtime:1", "control:1"))
OWNER = Owner("chat", "team", "uid-1")
OPEN = Balancer()
KEYS = Balancer(api_keys=SecretRef("keys"))
TLS = Balancer(tls=SecretRef("cert"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PICKER = Balancer(endpoint_picker=True)
ALL = Balancer(api_keys=SecretRef("keys"), tls=SecretRef("cert"), endpoint_picker=True)


def children(balancer: Balancer) -> dict[tuple[str, str], Any]:
    made = make_children(OWNER, Spec(Model("file:///models/a.gguf"), balancer=balancer), SETTINGS)
    return {(child["kind"], child["metadata"]["name"]): child for child in made}


def pod(balancer: Balancer) -> Any:
    return children(balancer)["Deployment", "chat-balancer"]["spec"]["template"]["spec"]


def container(balancer: Balancer, name: str) -> Any:
    spec = pod(balancer)
    found = [*spec["containers"], *spec["initContainers"]]
    return next(each for each in found if each["name"] == name)


def mounts(balancer: Balancer, name: str) -> set[str]:
    return {each["name"] for each in container(balancer, name)["volumeMounts"]}


def test_only_who_needs_a_secret_mounts_it() -> None:
    everywhere = {"run", "tmp"}
    assert mounts(ALL, "bootstrap") == everywhere | {"api-keys"}
    assert mounts(ALL, "envoy") == everywhere | {"tls"}
    assert mounts(ALL, "picker") == everywhere | {"token", "api-keys", "tls"}
    without_picker = Balancer(api_keys=SecretRef("keys"), tls=SecretRef("cert"))
    assert mounts(without_picker, "picker") == everywhere | {"token", "api-keys"}
    for name in ("bootstrap", "envoy"):
        assert mounts(OPEN, name) == everywhere


def test_secrets_are_named_and_neither_optional_nor_readable_to_all() -> None:
    volumes = {each["name"]: each.get("secret") for each in pod(ALL)["volumes"]}
    assert volumes["api-keys"] == {"secretName": "keys", "defaultMode": 0o440}
    assert volumes["tls"]["secretName"] == "cert"
    assert [each["key"] for each in volumes["tls"]["items"]] == ["tls.crt", "tls.key"]
    for kind, name in children(ALL):
        if kind in ("Role", "ClusterRole"):
            assert "secrets" not in json.dumps(children(ALL)[kind, name])


def test_keys_come_to_no_disk() -> None:
    def shared(balancer: Balancer) -> Any:
        return next(each for each in pod(balancer)["volumes"] if each["name"] == "run")

    assert shared(KEYS)["emptyDir"]["medium"] == "Memory"
    assert shared(OPEN) == {"name": "run", "emptyDir": {}}


def test_service_and_probes_follow_tls() -> None:
    (plain,) = children(OPEN)["Service", "chat"]["spec"]["ports"]
    assert (plain["port"], plain["targetPort"]) == (80, "http")
    (secure,) = children(TLS)["Service", "chat"]["spec"]["ports"]
    assert (secure["port"], secure["targetPort"], secure["appProtocol"]) == (443, "https", "https")
    envoy = container(TLS, "envoy")
    assert envoy["ports"][0]["name"] == "https"
    assert envoy["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert envoy["livenessProbe"]["tcpSocket"]["port"] == "https"
    assert "scheme" not in container(OPEN, "envoy")["readinessProbe"]["httpGet"]


@pytest.mark.parametrize(("balancer", "scheme"), [(OPEN, "http"), (TLS, "https")])
def test_the_url_is_that_of_the_service_as_it_is(balancer: Balancer, scheme: str) -> None:
    observed = Observed(children={("Service", "chat"): children(balancer)["Service", "chat"]})
    status = status_of(OWNER, observed, NOW, {})
    assert status["url"] == f"{scheme}://chat.team.svc/v1"


def test_gateways_reach_the_picker_and_the_replicas_only_where_it_is_asked_for() -> None:
    policies = children(PICKER)
    trusted = {"namespaceSelector": {"matchLabels": {"fastgen.dev/gateways": "true"}}}
    replica = policies["NetworkPolicy", "chat-replica"]["spec"]["ingress"]
    assert trusted in replica[0]["from"]
    closed = children(OPEN)["NetworkPolicy", "chat-replica"]["spec"]["ingress"]
    assert replica[0]["from"] == [*closed[0]["from"], trusted]
    everybodys, _, gateways = policies["NetworkPolicy", "chat-balancer"]["spec"]["ingress"]
    assert {port["port"] for port in everybodys["ports"]} == {8080, 9091}
    assert (gateways["from"], gateways["ports"][0]["port"]) == ([trusted], 9003)
    assert len(children(OPEN)["NetworkPolicy", "chat-balancer"]["spec"]["ingress"]) == 2
    ports = policies["Service", "chat"]["spec"]["ports"]
    assert [(port["name"], port["port"]) for port in ports] == [
        ("http", 80),
        ("endpoint-picker", 9003),
    ]
    assert {"name": "endpoint-picker", "containerPort": 9003, "protocol": "TCP"} in container(
        PICKER, "picker"
    )["ports"]


def test_an_edit_of_the_edge_moves_the_balancers_pods_alone() -> None:
    """A running template stays while what declares it does."""

    def declared(balancer: Balancer, name: str) -> str:
        deployment = children(balancer)["Deployment", name]
        return str(deployment["metadata"]["annotations"][DECLARED_ANNOTATION])

    edges = [OPEN, KEYS, TLS, PICKER, ALL, Balancer(api_keys=SecretRef("others"))]
    assert len({declared(edge, "chat-balancer") for edge in edges}) == len(edges)
    assert len({declared(edge, "chat-replica") for edge in edges}) == 1
    assert declared_edge(Balancer(replicas=5, max_queued_requests=1)) == ()


def test_the_program_takes_the_arguments_that_pods_give_it() -> None:
    known = CliRunner(env={"COLUMNS": "300", "TERM": "dumb"})
    for name in ("bootstrap", "picker"):
        made = container(ALL, name)
        verb, *given = map(str, [*made["command"][1:], *made.get("args", [])])
        text = known.invoke(app, [verb, "--help"]).output
        for argument in given:
            assert argument.partition("=")[0] in text, argument


@pytest.mark.parametrize(
    "words",
    [
        'MountVolume.SetUp failed for volume "api-keys" : secret "keys" not found',
        'MountVolume.SetUp failed for volume "tls" : references non-existent secret key: tls.key',
    ],
)
def test_a_missing_secret_is_told_with_the_way_out(words: str) -> None:
    labels = {"app.kubernetes.io/component": str(Component.BALANCER)}
    ailing = {"metadata": {"name": "a", "namespace": "team", "labels": labels}}
    remedy = mount_remedy(ailing, words)
    assert remedy.endswith("or correct spec.balancer.apiKeys and spec.balancer.tls")
    assert remedy.startswith(("Create it in namespace team", "Add the key"))


def test_specs_of_the_edge_are_read() -> None:
    raw = {"apiKeys": {"secretName": "keys"}, "tls": {"secretName": "cert"}, "endpointPicker": True}
    assert msgspec.convert(raw, Balancer) == ALL


def test_replicas_tell_their_load_under_other_names_on_request() -> None:
    def environment(aliases: str) -> list[Any]:
        settings = Settings(Images("runtime:1", "control:1"), metric_aliases=aliases)
        made = make_children(OWNER, Spec(Model("file:///models/a.gguf")), settings)
        (replica,) = (
            child for child in made
            if (child["kind"], child["metadata"]["name"]) == ("Deployment", "chat-replica")
        )  # fmt: skip
        found: list[Any] = replica["spec"]["template"]["spec"]["containers"][0]["env"]
        return found

    assert {"name": "FASTGEN_METRIC_ALIASES", "value": "vllm"} in environment("vllm")
    assert "FASTGEN_METRIC_ALIASES" not in json.dumps(environment(""))
