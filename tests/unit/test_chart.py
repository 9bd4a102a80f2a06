"""The chart's own parts against one another; what Helm makes of them is tested with Helm."""

import copy
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from fastgen_api import names
from fastgen_operator.children import make_children
from fastgen_operator.party import surroundings_of
from fastgen_operator.settings import Images, Settings, settings_from
from fastgen_operator.standing import neighbours_of

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "fastgen"
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
VALUES_TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(VALUES_TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
PREVIOUS_CHART = REPOSITORY / "tests/cluster/previous/fastgen-0.1.0.tgz"

OPEN_ENDED = {"operator.resources"}
"""Maps whose keys are Kubernetes' or the user's, not the chart's."""


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all values that a user sets."""
    for name, value in values.items():
        child = f"{path}{name}"
        if isinstance(value, dict) and value and child not in OPEN_ENDED:
            yield from leaves(value, f"{child}.")
        else:
            yield child


def schema_leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, child in schema["properties"].items():
        if "properties" in child:
            yield from schema_leaves(child, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def schema_objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "properties" in schema:
        yield schema
        for child in schema["properties"].values():
            yield from schema_objects(child)


def test_values_and_their_schema_have_the_same_keys() -> None:
    assert set(leaves(VALUES)) == set(schema_leaves(SCHEMA)) - {"global"}


def test_schema_refuses_typos_at_every_level() -> None:
    assert all(found["additionalProperties"] is False for found in schema_objects(SCHEMA))


def paths(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of the values, sections included."""
    for name, value in values.items():
        yield (*path, name)
        if isinstance(value, dict) and value and ".".join((*path, name)) not in OPEN_ENDED:
            yield from paths(value, (*path, name))


def values_with(path: tuple[str, ...], name: str, value: Any) -> dict[str, Any]:
    """The values, with one more key beside the one that `path` leads to."""
    changed: dict[str, Any] = copy.deepcopy(VALUES)
    section = changed
    for step in path[:-1]:
        section = section[step]
    section[name] = value
    return changed


def complaints(values: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


@given(st.data())
def test_every_key_misspelt_is_refused_by_name(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(paths(VALUES))))
    name = path[-1]
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    typo = data.draw(
        st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:],
                         name[:at] + letter + name[at + 1 :]])
    )  # fmt: skip
    siblings = {each[-1] for each in paths(VALUES) if each[:-1] == path[:-1]}
    assume(typo not in siblings | {"global"})
    (complaint,) = complaints(values_with(path, typo, 1))
    assert repr(typo) in complaint


@given(path=st.sampled_from(sorted(paths(VALUES))), value=st.sampled_from([[[]], 1.5, -1]))
def test_a_value_of_a_wrong_type_is_refused(path: tuple[str, ...], value: Any) -> None:
    assert complaints(values_with(path, path[-1], value))


def test_the_values_themselves_are_accepted() -> None:
    assert complaints(VALUES) == []


def dug() -> dict[str, Any]:
    """Values that templates read with `dig`, and the defaults that they name."""
    words = r'dig ((?:"[A-Za-z]+" )+)(\S+) \.Values\.AsMap'
    found = re.findall(words, "\n".join(TEMPLATES.values()))
    return {
        ".".join(re.findall(r"[A-Za-z]+", path)): yaml.safe_load(value) for path, value in found
    }


def test_every_value_is_used_and_every_use_is_a_value() -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", "\n".join(TEMPLATES.values())))
    assert used - {"AsMap"} | set(dug()) == set(leaves(VALUES))


def test_new_values_are_read_so_that_an_upgrade_with_reused_values_gets_their_defaults() -> None:
    """Helm then knows only the values of the chart before: `.Values.new.value` is an error."""
    with tarfile.open(PREVIOUS_CHART) as archive:
        member = archive.extractfile("fastgen/values.yaml")
        assert member
        before = set(leaves(yaml.safe_load(member.read())))
    new = set(leaves(VALUES)) - before
    assert new == set(dug()), 'read it as `dig "section" "value" DEFAULT .Values.AsMap`'
    for path, default in dug().items():
        value: Any = VALUES
        for name in path.split("."):
            value = value[name]
        assert default == ("dict" if value == {} else value), path


def test_every_value_has_a_comment() -> None:
    lines = iter(VALUES_TEXT.splitlines())
    for path in leaves(VALUES):
        key = f"{'  ' * path.count('.')}{path.rpartition('.')[2]}:"
        above = ""
        for line in lines:
            if line.startswith(key):
                break
            above = line
        assert above.lstrip().startswith("# "), path


def operator_rules() -> list[dict[str, list[str]]]:
    """The operator's rules; this part of the template needs no Helm to be read."""
    text = TEMPLATES["rbac.yaml"]
    block = re.search(r'define "fastgen.operatorRules" -}}\n(.*?){{- end }}', text, re.DOTALL)
    assert block
    return list(yaml.safe_load(block[1]))


def permissions(rules: list[dict[str, list[str]]]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of rules that are bound to no single object."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_operator_may_touch_no_secret_and_has_no_wildcard() -> None:
    held = permissions(operator_rules())
    assert not [found for found in held if "*" in "".join(found)]
    assert not [found for found in held if "secrets" in found[1]]
    assert not [found for found in held if found[2] in ("bind", "escalate", "impersonate")]


def test_operator_writes_nothing_of_the_resource_but_its_status() -> None:
    writes = {
        (resource, verb)
        for group, resource, verb in permissions(operator_rules())
        if group == names.GROUP and verb not in ("get", "list", "watch")
    }
    assert writes == {
        (f"{names.PLURAL}/status", "patch"),
        (f"{names.PLURAL}/finalizers", "update"),
        # Held only to be granted to the balancers.
        (f"{names.PLURAL}/scale", "update"),
    }


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_operator_holds_what_it_does_and_what_it_grants(path: Path) -> None:
    """The API server lets nobody grant a right that they do not hold themselves."""
    settings = Settings(images=Images(runtime="runtime:1", control="control:1"))
    resources = list(yaml.safe_load_all(path.read_text()))
    for resource in resources:
        resource["metadata"] |= {"namespace": "models", "uid": resource["metadata"]["name"]}
    members = neighbours_of(resources)
    children = [
        child
        for each in members
        for child in make_children(
            each.owner, each.spec, settings, None, (), surroundings_of(each.owner, members)
        )
    ]
    granted = [rule for child in children if child["kind"] == "Role" for rule in child["rules"]]
    assert granted
    held = permissions(operator_rules())
    assert permissions(granted) <= held
    for child in children:
        group = child["apiVersion"].rpartition("/")[0]
        plural = f"{child['kind'].lower()}s".replace("ys", "ies")
        needed = ("get", "list", "watch", "create", "patch", "delete")
        assert {(group, plural, verb) for verb in needed} <= held


def test_operator_holds_nothing_else() -> None:
    """Each right is one that a child's kind, the operator's own work or a balancer needs."""
    every = ("get", "list", "watch", "create", "patch", "delete")
    kinds = {
        "apps": ("deployments",),
        "": ("services", "serviceaccounts", "configmaps", "persistentvolumeclaims"),
        "batch": ("jobs",),
        "policy": ("poddisruptionbudgets",),
        "networking.k8s.io": ("networkpolicies",),
        "monitoring.coreos.com": ("podmonitors", "prometheusrules"),
        "rbac.authorization.k8s.io": ("roles", "rolebindings"),
    }
    read = ("get", "list", "watch")
    needed = {(group, kind, verb) for group in kinds for kind in kinds[group] for verb in every}
    needed |= {("", "pods", verb) for verb in read}
    needed |= {("discovery.k8s.io", "endpointslices", verb) for verb in read}
    needed |= {(names.GROUP, names.PLURAL, verb) for verb in read}
    needed |= {("autoscaling", "horizontalpodautoscalers", verb) for verb in ("list", "watch")}
    needed |= {
        (names.GROUP, f"{names.PLURAL}/status", "patch"),
        (names.GROUP, f"{names.PLURAL}/finalizers", "update"),
        (names.GROUP, f"{names.PLURAL}/scale", "update"),
        ("events.k8s.io", "events", "create"),
        ("events.k8s.io", "events", "list"),
    }
    needed |= {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    assert permissions(operator_rules()) == needed


def test_operator_reads_what_the_chart_sets() -> None:
    told = set(re.findall(r"name: (FASTGEN_[A-Z_]+|POD_[A-Z]+)\n", TEMPLATES["operator.yaml"]))
    environment = Recorded({"FASTGEN_RUNTIME_IMAGE": "r:1", "FASTGEN_CONTROL_IMAGE": "c:1"})
    settings_from(environment)
    fixed = {"FASTGEN_HTTP_PORT"}  # By the chart's probes.
    assert told == environment.asked - fixed


class Recorded(dict[str, str]):
    """An environment that remembers which variables were read."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def test_notes_name_the_short_name_and_the_api_version() -> None:
    assert f"kubectl wait {names.SHORT_NAME}/" in TEMPLATES["NOTES.txt"]
    assert f"apiVersion: {names.API_VERSION}" in TEMPLATES["NOTES.txt"]


def test_operator_listens_where_its_probes_ask() -> None:
    assert f"containerPort: {names.Port.OPERATOR_HTTP}" in TEMPLATES["operator.yaml"]
