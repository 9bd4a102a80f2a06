"""What real Helm makes of the chart, and what a real API server thinks of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Commands
from promtool import complaints_of_definition

from fastgen_devcluster.command import CommandError
from fastgen_operator.privileges import Allowed
from fastgen_operator.settings import Images, MonitoringSettings, Settings, settings_from

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/fastgen"
RELEASE = "contract"
IMAGES = "--set=images.control=control:1,images.runtime=runtime:1,images.pullPolicy=Never"


def rendered(cluster: Commands, namespace: str, *flags: str) -> list[dict[str, Any]]:
    text = cluster.helm("template", RELEASE, str(CHART), "-n", namespace, IMAGES, *flags)
    return [found for found in yaml.safe_load_all(text) if found]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] == kind]


def test_lint_finds_nothing(cluster: Commands) -> None:
    report = cluster.helm("lint", "--strict", str(CHART), IMAGES)
    assert "[ERROR]" not in report
    assert "[WARNING]" not in report


def test_images_must_be_named(cluster: Commands) -> None:
    with pytest.raises(CommandError, match=r"images\.control is not set: `make images`"):
        cluster.helm("template", RELEASE, str(CHART))


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("image.control=c", "'image' not allowed"),
        ("operator.resource.cpu=1", "'resource' not allowed"),
        ("logLevel=debug", "/logLevel"),
        ("prometheus.url=prometheus:9090", "/prometheus/url"),
        ("prometheus.url=http://user:word@prometheus", "/prometheus/url"),
        ("hub.endpoint=mirror.example", "/hub/endpoint"),
        ("hub.environment.HF_TOKEN=secret", "HF_TOKEN"),
        ("hub.environment.RETRIES=3", "/hub/environment/RETRIES': got number"),
        ("watchNamespaces[0]=Not_A_Name", "/watchNamespaces/0"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
        ("rbac.aggregateRoles=auto", "/rbac/aggregateRoles"),
        ("scaling.frozen=yes", "/scaling/frozen': got string, want boolean"),
        ("scaling.freeze=true", "'freeze' not allowed"),
        ("monitoring.dashboard.enable=false", "'enable' not allowed"),
        ("test.timeoutSeconds=0", "minimum: got 0, want 1"),
        ("operator.podAnnotations.count=3", "/operator/podAnnotations/count': got number"),
    ],
)
def test_typos_are_refused_by_name(cluster: Commands, flag: str, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        cluster.helm("template", RELEASE, str(CHART), IMAGES, "--set", flag)


def test_chart_brings_the_definition(cluster: Commands) -> None:
    (found,) = of_kind(rendered(cluster, "x"), "CustomResourceDefinition")
    source = REPOSITORY / "crds/fastgendeployments.fastgen.dev.yaml"
    assert found["spec"] == yaml.safe_load(source.read_text())["spec"]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (loose,) = of_kind(rendered(cluster, "x", "--set=crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in loose["metadata"]
    none = rendered(cluster, "x", "--set=crds.enabled=false")
    assert not of_kind(none, "CustomResourceDefinition")


def test_operator_understands_its_environment(cluster: Commands) -> None:
    flags = (
        "--set=images.envoy=envoy:1,images.pullSecrets={a,b},watchNamespaces={m,n}",
        "--set=prometheus.url=http://prometheus:9090,logLevel=DEBUG",
        "--set=podTemplate.allow=None,networkPolicy.enabled=false,monitoring.enabled=false",
        "--set=monitoring.labels.release=kube-prometheus-stack,monitoring.labels.a\\.b/c=d",
    )
    (deployment,) = of_kind(rendered(cluster, "x", *flags), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    assert settings_from(told) == Settings(
        images=Images("runtime:1", "control:1", "envoy:1", "Never", ("a", "b")),
        namespaces=("m", "n"),
        prometheus_url="http://prometheus:9090",
        pod_templates=Allowed.NONE,
        network_policies=False,
        monitoring=MonitoringSettings(False, {"release": "kube-prometheus-stack", "a.b/c": "d"}),
        log_level="DEBUG",
    )
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


KINDS_OF_THE_PROMETHEUS_OPERATOR = [
    f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")
]


def test_the_dashboard_is_a_config_map_that_grafana_finds(cluster: Commands) -> None:
    flags = (
        "--set=monitoring.dashboard.annotations.grafana_folder=FastGen",
        "--set=monitoring.dashboard.labels.team=serving",
    )
    (found,) = of_kind(rendered(cluster, "x", *flags), "ConfigMap")
    assert (
        found["metadata"]["labels"].items() >= {"grafana_dashboard": "1", "team": "serving"}.items()
    )
    assert found["metadata"]["annotations"] == {"grafana_folder": "FastGen"}
    (text,) = found["data"].values()
    assert json.loads(text) == json.loads((CHART / "files/dashboard.json").read_text())
    off = rendered(cluster, "x", "--set=monitoring.dashboard.enabled=false")
    assert not of_kind(off, "ConfigMap")


def test_the_operator_is_monitored_where_the_cluster_knows_the_kinds(cluster: Commands) -> None:
    assert not of_kind(rendered(cluster, "x"), "PrometheusRule")
    flags = (*KINDS_OF_THE_PROMETHEUS_OPERATOR, "--set=monitoring.labels.release=stack")
    objects = rendered(cluster, "x", *flags)
    (monitor,), (rule,) = of_kind(objects, "PodMonitor"), of_kind(objects, "PrometheusRule")
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = pod["spec"]["containers"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    for made in (monitor, rule):
        assert complaints_of_definition(made) == []
        assert made["metadata"]["labels"]["release"] == "stack"
    (group,) = rule["spec"]["groups"]
    assert all(f'job="x/{monitor["metadata"]["name"]}"' in each["expr"] for each in group["rules"])
    off = rendered(cluster, "x", *flags, "--set=monitoring.enabled=false")
    assert not of_kind(off, "PrometheusRule") + of_kind(off, "PodMonitor")


def test_rights_are_for_the_cluster_or_for_the_listed_namespaces(cluster: Commands) -> None:
    everywhere = rendered(cluster, "x", "--set=rbac.aggregateRoles=false")
    (wide,) = of_kind(everywhere, "ClusterRole")
    assert not of_kind(everywhere, "Role")
    listed = rendered(cluster, "x", "--set=watchNamespaces={m,n}")
    roles = of_kind(listed, "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["m", "n"]
    assert all(role["rules"] == wide["rules"] for role in roles)
    for binding in of_kind(listed, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["namespace"] == "x"
    for role in of_kind(rendered(cluster, "x"), "ClusterRole") + roles:
        words = [word for rule in role["rules"] for words in rule.values() for word in words]
        assert not [word for word in words if "*" in word or "secret" in word]


def test_an_installation_for_listed_namespaces_makes_nothing_outside_but_the_definition(
    cluster: Commands,
) -> None:
    listed = rendered(cluster, "x", "--set=watchNamespaces={m,n}")
    outside = {found["kind"] for found in listed if "namespace" not in found["metadata"]}
    assert outside == {"CustomResourceDefinition"}
    assert {found["metadata"].get("namespace") for found in listed} == {None, "x", "m", "n"}


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ("rbac.aggregateRoles=Auto", True),
        ("rbac.aggregateRoles=Auto,watchNamespaces={m}", False),
        ("rbac.aggregateRoles=true,watchNamespaces={m}", True),
        ("rbac.aggregateRoles=false", False),
    ],
)
def test_users_roles_follow_what_is_served(cluster: Commands, values: str, made: bool) -> None:
    roles = of_kind(rendered(cluster, "x", f"--set={values}"), "ClusterRole")
    names_of_roles = {role["metadata"]["name"] for role in roles}
    assert ({f"{RELEASE}-view", f"{RELEASE}-edit"} <= names_of_roles) is made


@pytest.fixture(scope="module")
def restricted(cluster: Commands, namespace: str) -> str:
    """The namespace, with the strictest Pod Security standard."""
    labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", namespace, *labels)
    return namespace


VALUE_SETS = {
    "defaults": (),
    "test of a deployment": ("test.deployment=chat,test.namespace=models,test.timeoutSeconds=5",),
    "listed namespace": ("watchNamespaces={NAMESPACE},crds.enabled=false",),
    "roles for users": ("rbac.aggregateRoles=true,watchNamespaces={NAMESPACE}",),
    "own names": (
        "serviceAccount.name=someone,fullnameOverride=a-name-that-is-exactly-fifty-characters-long-12345",
    ),
    "pull secrets and Envoy": (
        "images.pullSecrets={one,two.example},images.envoy=envoy:1,images.pullPolicy=Always",
    ),
    "where the operator runs": (
        "operator.nodeSelector.disk=ssd,operator.priorityClassName=system-cluster-critical",
        "operator.tolerations[0].key=infra,operator.tolerations[0].operator=Exists",
        "operator.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].key=disk,"
        "operator.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
    ),
    "annotations and resources": (
        "operator.podAnnotations.team=serving,serviceAccount.annotations.role=none",
        "operator.resources.limits.memory=1Gi,operator.resources.requests=null",
    ),
    "a mirror of the hub": (
        "hub.endpoint=https://mirror.example,hub.environment.HTTPS_PROXY=http://proxy:3128",
    ),
    "frozen, loud, with Prometheus": (
        "scaling.frozen=true,logLevel=DEBUG,prometheus.url=https://prometheus.example/base",
    ),
}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_api_server_accepts_all_of_it_under_restricted_pod_security(
    cluster: Commands, restricted: str, values: tuple[str, ...]
) -> None:
    flags = [f"--set={each.replace('NAMESPACE', restricted)}" for each in values]
    objects = rendered(cluster, restricted, *flags)
    objects = [found for found in objects if found["kind"] != "CustomResourceDefinition"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
    made = cluster.kubectl(*words, stdin=text)
    assert len(made.splitlines()) == len(objects)


def test_the_longest_name_of_a_release_fits(cluster: Commands, restricted: str) -> None:
    name = "r" * 53
    text = cluster.helm("template", name, str(CHART), "-n", restricted, IMAGES)
    objects = [found for found in yaml.safe_load_all(text) if found]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        found for found in objects if found["kind"] != "CustomResourceDefinition"]})  # fmt: skip
    cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=text)


def test_test_pod_carries_the_script_whole(cluster: Commands, tmp_path: Path) -> None:
    """Indentation by the template must leave the program as it is."""
    (pod,) = of_kind(rendered(cluster, "x", "--set=test.deployment=chat"), "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"][:2] == ["python3", "-c"]
    assert container["command"][2].strip() == (CHART / "files/stream_test.py").read_text().strip()
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment == {
        "BALANCER": "",
        "DEPLOYMENT": "chat",
        "DEPLOYMENT_NAMESPACE": "x",
        "SCHEME": "http",
        "TIMEOUT_SECONDS": "120",
    }


def test_test_pod_takes_a_key_and_trust_from_a_secret(cluster: Commands) -> None:
    values = "--set=test.deployment=chat,test.tls=true,test.secret=chat-test"
    (pod,) = of_kind(rendered(cluster, "x", values), "Pod")
    (container,) = pod["spec"]["containers"]
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert (environment["SCHEME"], environment["DEPLOYMENT"]) == ("https", "chat")
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == environment["SECRET_DIRECTORY"]
    assert pod["spec"]["volumes"] == [{"name": "secret", "secret": {"secretName": "chat-test"}}]
