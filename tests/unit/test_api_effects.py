"""Nothing is accepted and ignored: each field of the spec changes what a room makes of it."""

import inspect
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from changed_specs import CHANGED, example_for, with_value

from fastgen_api.sharing import Declared, balancer_of
from fastgen_api.spec import Model, Spec, parse
from fastgen_balancer import leader
from fastgen_balancer.roster import roster_of
from fastgen_balancer.scaling_policy import policy_of
from fastgen_balancer.settings import settings_of
from fastgen_operator.children import make_children
from fastgen_operator.delivery import key_of
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings
from fastgen_runtime.front.goodness import End, Timings, TokenTimes, classify

ROOT = Path(__file__).resolve().parents[2]
reference = runpy.run_path(str(ROOT / "docs/api_reference.py"))
OWNER = Owner("chat", "team", "uid-1")
SETTINGS = Settings(Images("runtime:1", "control:1"))


def effects(raw: dict[str, Any]) -> dict[str, Any]:
    """What the rooms make of a spec, by who does."""
    spec = parse(raw)
    return {
        "operator": children(spec),
        "picker": settings_of(spec),
        "routes": ways(spec),
        # The key is a fingerprint of fields that others heed.
        "autoscaler": replace(policy_of(spec, None), capacity_key=""),
        "replica": judged(spec),
        "leader": spec.scaling.prometheus.url,
    }


def ways(spec: Spec) -> object:
    """Where the picker leads requests, where the routes' ends are there."""
    others = (Declared(name, "", Spec(Model("file:///m"))) for name in ("batch", "bulk"))
    found = roster_of(balancer_of(OWNER.name, spec), (Declared(OWNER.name, "", spec), *others), 1.0)
    return [each.routes for each in found.entries]


def children(spec: Spec) -> list[dict[str, Any]]:
    """The children without what echoes the spec: the SLO's ConfigMap, and fingerprints of it."""
    made = [each for each in make_children(OWNER, spec, SETTINGS) if each["kind"] != "ConfigMap"]
    for child in made:
        child["metadata"].pop("annotations", None)
        if child["kind"] == "Job":
            child["spec"]["template"]["metadata"].pop("annotations")
    # The key that tells models apart is a fingerprint as well.
    text = json.dumps(made).replace(key_of(OWNER.name, spec.model), "KEY")
    return cast(list[dict[str, Any]], json.loads(text))


def judged(spec: Spec) -> object:
    """The runtime's verdict on a request that holds each target of the example just so."""
    just_so = Timings(
        arrived=0.0,
        prompt_tokens=1000,
        choices=[TokenTimes(count=11, first=1.1, last=2.0, longest_gap=0.45, is_complete=True)],
    )
    return classify(just_so, End.COMPLETED, 2.0, spec.slo)


@pytest.mark.parametrize("path", CHANGED)
def test_another_value_has_an_effect(path: str) -> None:
    changed = effects(with_value(path, CHANGED[path]))
    assert json.dumps(changed, default=str) != json.dumps(effects(example_for(path)), default=str)


def test_the_leader_reads_the_prometheus_of_the_resource() -> None:
    """What `effects` says of it is true: the one field that is read where it is used."""
    assert "deployment.spec.scaling.prometheus.url" in inspect.getsource(leader)


def test_every_field_has_an_effect() -> None:
    fields = reference["fields"](reference["read_definition"]()["properties"]["spec"], "spec")
    open_fields = set()
    for field in fields:
        is_leaf = not (
            field.schema.get("properties") or field.schema.get("items", {}).get("properties")
        )
        if is_leaf:
            open_fields.add(field.path)
    assert open_fields == CHANGED.keys()
