"""PodMonitor and PrometheusRule, held against the Prometheus operator's own definitions."""

import copy
import json

import operator_alerts
from promtool import complaints_of_definition

from fastgen_api.spec import Model, Spec
from fastgen_operator.children import make_children
from fastgen_operator.monitoring import MONITORING_KINDS, PROMETHEUS_RULE
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

CHILDREN = [
    child
    for child in make_children(
        Owner("chat", "team", "u"),
        Spec(Model("file:///models/a.gguf")),
        Settings(Images("r:1", "c:1")),
        served=MONITORING_KINDS,
    )
    if child["kind"] in MONITORING_KINDS
]


def test_a_deployments_children_fit() -> None:
    assert [child["kind"] for child in CHILDREN] == list(MONITORING_KINDS)
    for child in CHILDREN:
        assert complaints_of_definition(child) == []


def test_the_operators_alerts_fit() -> None:
    rule = {"kind": PROMETHEUS_RULE, "spec": json.loads(operator_alerts.text())}
    assert complaints_of_definition(rule) == []


def test_what_does_not_fit_is_found_out() -> None:
    rule = copy.deepcopy(CHILDREN[-1])
    rule["spec"]["groups"][0]["interval"] = "30 seconds"
    rule["spec"]["groups"][0]["rules"][0]["fro"] = "1m"
    told = " ".join(complaints_of_definition(rule))
    assert "'30 seconds' does not match" in told
    assert "'fro' was unexpected" in told
