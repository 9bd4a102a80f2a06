"""What an installed release tells, and what its operator may do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import Commands

from fastgen_api import names
from fastgen_api.spec import parse
from fastgen_devcluster.command import CommandError
from fastgen_operator.children import make_children
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/fastgen"
RELEASE = "contract"
IMAGES = "--set=images.control=control:1,images.runtime=runtime:1,images.pullPolicy=Never"


REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/fastgen"
RELEASE = "contract"
IMAGES = "--set=images.control=control:1,images.runtime=runtime:1,images.pullPolicy=Never"


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
