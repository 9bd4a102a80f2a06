"""Definition, chart copy, page, examples and names say the same."""

import copy
import os
import runpy
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import fastgen_balancer.main
from fastgen_api import names, spec
from fastgen_api.envoy import CONFIGURATION_FILE, envoy_command

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("api", "kernels", "runtime", "balancer", "operator", "cli", "devcluster")
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
RULES = "x-kubernetes-validations"

reference = runpy.run_path(str(REPOSITORY / "docs/api_reference.py"))
copy_crds = runpy.run_path(str(REPOSITORY / "charts/copy_crds.py"))
definition = yaml.safe_load((REPOSITORY / "crds/fastgendeployments.fastgen.dev.yaml").read_text())
version = definition["spec"]["versions"][0]


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_is_a_package_itself(room: str) -> None:
    """`operator/__init__.py` would shadow the standard library's module."""
    assert (REPOSITORY / room / f"fastgen_{room}").is_dir()
    assert not list((REPOSITORY / room).glob("*.py"))


def test_definition_bears_the_names_of_the_api() -> None:
    assert definition["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"
    assert definition["spec"]["group"] == names.GROUP
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"] == {
        "kind": names.KIND,
        "listKind": f"{names.KIND}List",
        "plural": names.PLURAL,
        "singular": names.KIND.lower(),
        "shortNames": [names.SHORT_NAME],
    }
    assert [served["name"] for served in definition["spec"]["versions"]] == [names.VERSION]


def test_definition_has_status_scale_and_the_columns() -> None:
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    replicas = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
    assert replicas["default"] == 1
    columns = version["additionalPrinterColumns"]
    always = [column["name"] for column in columns if not column.get("priority")]
    assert always == ["READY", "REPLICAS", "GOOD", "SLO", "REASON", "AGE"]
    used = {names.Condition.READY, names.Condition.SLO_MET}
    paths = " ".join(column["jsonPath"] for column in columns)
    assert all(f'@.type=="{condition}"' in paths for condition in used)


def test_definition_limits_the_name_as_the_api_does() -> None:
    rules = [rule["rule"] for rule in version["schema"]["openAPIV3Schema"][RULES]]
    assert f"self.metadata.name.size() <= {names.MAX_NAME_LENGTH}" in rules
    longest = "x" * names.MAX_NAME_LENGTH
    children = (
        names.balancer_name(longest),
        names.replica_name(longest),
        names.slo_config_map_name(longest),
        names.service_name(longest),
    )
    assert max(map(len, children)) <= 63


def test_routes_match_no_header_that_clients_cannot_bring() -> None:
    """What the balancer removes, or answers with, would never match."""
    spec_fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    match = spec_fields["balancer"]["properties"]["routes"]["items"]["properties"]["match"]
    rules = match["properties"]["header"]["properties"]["name"][RULES]
    (told,) = [each["rule"] for each in rules if "x-fastgen-" in each["rule"]]
    headers = {value for name, value in vars(names.Header).items() if name.isupper()}
    ours = headers - {names.Header.REQUEST_ID, names.Header.MODEL}
    refused = told.partition("x-fastgen-(")[2].partition(")")[0].split("|")
    assert {f"x-fastgen-{each}" for each in refused} == ours


def test_definition_tells_of_every_condition() -> None:
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    told = status["conditions"]["description"]
    conditions = {value for name, value in vars(names.Condition).items() if name.isupper()}
    assert {word.strip(".,;") for word in told.split()} >= conditions


def test_chart_carries_the_definition() -> None:
    assert copy_crds["TARGET"].read_text() == copy_crds["chart_copy"](
        copy_crds["SOURCE"].read_text()
    ), "run `make chart`"


def test_chart_copy_refuses_what_helm_would_interpret() -> None:
    source = copy_crds["SOURCE"].read_text()
    with pytest.raises(ValueError, match="take for its own"):
        copy_crds["chart_copy"](source + "# {{ .Values.x }}\n")
    with pytest.raises(ValueError, match="must hold the line"):
        copy_crds["chart_copy"](source.replace("  name: fastgendeployments", "  name: others"))


def test_page_is_written_from_the_definition() -> None:
    page = (REPOSITORY / "docs/api-reference.md").read_text()
    assert page.partition(reference["BEGIN"])[2] == reference["written_part"](), "run `make chart`"


def test_chart_images_and_package_carry_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((REPOSITORY / "charts/fastgen/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, refusing unknown fields as kubectl does."""
    found = copy.deepcopy(schema)

    def close(node: dict[str, Any]) -> None:
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node["additionalProperties"] = False
        children = (*node.get("properties", {}).values(), node.get("items"))
        for child in (*children, node.get("additionalProperties")):
            if isinstance(child, dict):
                close(child)

    close(found)
    found["properties"]["metadata"] = {"type": "object"}
    return found


def test_envoy_starts_alike_in_both_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control image's Envoy starts by the balancer, a foreign one by the operator."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: started.append(arguments))
    fastgen_balancer.main.envoy(Path("/run/fastgen"))
    assert started == [envoy_command(f"/run/fastgen/{CONFIGURATION_FILE}")]
    assert "--disable-hot-restart" in started[0]


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {
        "minimal", "smollm2-cpu", "slo-autoscaling", "single-gpu", "tensor-parallel",
    }  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_fits_definition_and_types(path: Path) -> None:
    schema = closed(version["schema"]["openAPIV3Schema"])
    for resource in yaml.safe_load_all(path.read_text()):
        assert resource["apiVersion"] == names.API_VERSION
        assert resource["kind"] == names.KIND
        jsonschema.validate(resource, schema)
        spec.parse(resource["spec"])


def test_closed_schema_refuses_a_typo() -> None:
    schema = closed(version["schema"]["openAPIV3Schema"])
    resource = yaml.safe_load((REPOSITORY / "examples/smollm2-cpu.yaml").read_text())
    resource["spec"]["slo"]["tokenGap"]["maxMiliseconds"] = 1
    with pytest.raises(jsonschema.ValidationError, match="maxMiliseconds"):
        jsonschema.validate(resource, schema)
