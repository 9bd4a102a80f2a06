"""What real Helm makes of the chart, and what a real API server thinks of it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Commands

from fastgen_api import names
from fastgen_api.spec import parse
from fastgen_devcluster.command import CommandError
from fastgen_operator.children import make_children
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings, settings_from

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
        ("watchNamespaces[0]=Not_A_Name", "/watchNamespaces/0"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
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
    )
    (deployment,) = of_kind(rendered(cluster, "x", *flags), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    assert settings_from(told) == Settings(
        images=Images("runtime:1", "control:1", "envoy:1", "Never", ("a", "b")),
        namespaces=("m", "n"),
        prometheus_url="http://prometheus:9090",
        log_level="DEBUG",
    )
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_rights_are_for_the_cluster_or_for_the_listed_namespaces(cluster: Commands) -> None:
    everywhere = rendered(cluster, "x", "--set=rbac.aggregateRoles=false")
    (wide,) = of_kind(everywhere, "ClusterRole")
    assert not of_kind(everywhere, "Role")
    listed = rendered(cluster, "x", "--set=rbac.aggregateRoles=false,watchNamespaces={m,n}")
    assert not of_kind(listed, "ClusterRole")
    assert not of_kind(listed, "ClusterRoleBinding")
    roles = of_kind(listed, "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["m", "n"]
    assert all(role["rules"] == wide["rules"] for role in roles)
    for binding in of_kind(listed, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["namespace"] == "x"
    for role in of_kind(rendered(cluster, "x"), "ClusterRole") + roles:
        words = [word for rule in role["rules"] for words in rule.values() for word in words]
        assert not [word for word in words if "*" in word or "secret" in word]


@pytest.fixture(scope="module")
def restricted(cluster: Commands, namespace: str) -> str:
    """The namespace, with the strictest Pod Security standard."""
    labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", namespace, *labels)
    return namespace


@pytest.mark.parametrize("flag", ["rbac.aggregateRoles=true", "test.deployment=chat"])
def test_api_server_accepts_all_of_it_under_restricted_pod_security(
    cluster: Commands, restricted: str, flag: str
) -> None:
    objects = rendered(cluster, restricted, "--set", flag)
    objects = [found for found in objects if found["kind"] != "CustomResourceDefinition"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
    cluster.kubectl(*words, stdin=text)


@pytest.fixture(scope="module")
def installed(cluster: Commands, namespace: str) -> Iterator[str]:
    """A release that serves only its own namespace; its image does not exist."""
    cluster.helm(
        "install", RELEASE, str(CHART), "-n", namespace, IMAGES,
        "--set=crds.enabled=false,rbac.aggregateRoles=false",
        f"--set=watchNamespaces={{{namespace}}}",
    )  # fmt: skip
    yield namespace
    cluster.helm("uninstall", RELEASE, "-n", namespace)


def test_notes_tell_what_comes_next(cluster: Commands, installed: str) -> None:
    notes = cluster.helm("get", "notes", RELEASE, "-n", installed)
    commands = ("kubectl apply", "kubectl wait fgd/", "curl -N")
    assert all(command in notes for command in commands)
    manifest = notes.partition("<<EOF\n")[2].partition("EOF\n")[0]
    cluster.kubectl("create", "-n", installed, "--dry-run=server", "-f", "-", stdin=manifest)


def test_operator_may_make_the_children_and_grant_their_rights(
    cluster: Commands, installed: str
) -> None:
    """With the operator's own identity; RoleBindings need their Roles, so both are really made."""
    resource = yaml.safe_load((REPOSITORY / "examples/minimal.yaml").read_text())
    owner = Owner(name="minimal", namespace=installed, uid="00000000-0000-0000-0000-000000000000")
    settings = Settings(images=Images("runtime:1", "control:1"))
    identity = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    words = ("apply", "--server-side", f"--field-manager={names.OPERATOR_MANAGER}", identity)
    kinds = []
    for child in make_children(owner, parse(resource["spec"]), settings):
        # The garbage collector would take away what an owner that does not exist has left.
        del child["metadata"]["ownerReferences"]
        stays = child["kind"] in ("Role", "RoleBinding")
        flags = () if stays else ("--dry-run=server",)
        cluster.kubectl(*words, *flags, "-f", "-", stdin=json.dumps(child))
        kinds.append(child["kind"])
    assert {"Role", "RoleBinding", "Deployment", "Service"} <= set(kinds)
    balancer = f"--as=system:serviceaccount:{installed}:{names.balancer_name('minimal')}"
    cluster.kubectl("auth", "can-i", "get", names.PLURAL, balancer, "-n", installed)


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("create", "pods/exec"),
        ("create", "pods"),
        ("update", names.PLURAL),
        ("patch", names.PLURAL),
        ("delete", names.PLURAL),
    ],
)
def test_operator_may_not(cluster: Commands, installed: str, verb: str, what: str) -> None:
    identity = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    with pytest.raises(CommandError, match=": no"):
        cluster.kubectl("auth", "can-i", verb, what, identity, "-n", installed)


def test_operator_has_no_rights_elsewhere(cluster: Commands, installed: str) -> None:
    identity = f"--as=system:serviceaccount:{installed}:{RELEASE}"
    cluster.kubectl("auth", "can-i", "list", names.PLURAL, identity, "-n", installed)
    with pytest.raises(CommandError, match=": no"):
        cluster.kubectl("auth", "can-i", "list", names.PLURAL, identity, "-n", "default")


@pytest.fixture
def older_chart(tmp_path: Path) -> Path:
    """A chart with the definition alone, under another group, before a field was added."""
    chart = tmp_path / "older"
    shutil.copytree(CHART, chart)
    for template in (chart / "templates").glob("*.*"):
        if template.name not in ("crds.yaml", "_helpers.tpl"):
            template.unlink()
    crd = chart / "templates/crds.yaml"
    text = crd.read_text().replace("fastgen.dev", "upgrade.fastgen.dev").replace("[fgd]", "[]")
    crd.write_text(text)
    newer = tmp_path / "newer"
    shutil.copytree(chart, newer)
    crd.write_text(text.replace("coldStartSeconds:", "fieldBeforeItsTime:"))
    return chart


def test_upgrade_brings_new_fields_and_removal_keeps_the_definition(
    cluster: Commands, namespace: str, older_chart: Path
) -> None:
    crd = f"{names.PLURAL}.upgrade.{names.GROUP}"
    get = ("get", "crd", crd, "--ignore-not-found", "-o=json")
    where = ("-n", namespace)
    cluster.helm("install", "definition", str(older_chart), *where)
    try:
        assert "coldStartSeconds" not in cluster.kubectl(*get)
        newer = str(older_chart.parent / "newer")
        cluster.helm("upgrade", "definition", newer, *where)
        assert "coldStartSeconds" in cluster.kubectl(*get)
        cluster.helm("uninstall", "definition", *where)
        assert "coldStartSeconds" in cluster.kubectl(*get)
        cluster.helm("install", "definition", newer, *where, "--set=crds.keep=false")
        cluster.helm("uninstall", "definition", *where)
        cluster.kubectl("wait", "--for=delete", f"crd/{crd}", "--timeout=60s")
    finally:
        cluster.kubectl("delete", "crd", crd, "--ignore-not-found")


def test_test_pod_carries_the_script_whole(cluster: Commands, tmp_path: Path) -> None:
    """Indentation by the template must leave the program as it is."""
    (pod,) = of_kind(rendered(cluster, "x", "--set=test.deployment=chat"), "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"][:2] == ["python3", "-c"]
    assert container["command"][2].strip() == (CHART / "files/stream_test.py").read_text().strip()
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment == {
        "DEPLOYMENT": "chat",
        "DEPLOYMENT_NAMESPACE": "x",
        "TIMEOUT_SECONDS": "120",
    }
