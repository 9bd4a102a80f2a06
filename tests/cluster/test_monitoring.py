"""Alerts as Prometheus judges them, and the Prometheus operator's kinds, which come and go."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import wait_until
from commands import Commands
from operator_process import OperatorProcess
from operator_questions import delete
from promtool import monitoring_definitions, promtool

from fastgen_api.spec import Model, Spec
from fastgen_devcluster.command import CommandError, run
from fastgen_operator.children import make_children
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LABELS = 'deployment="chat",deployment_namespace="team"'
FAST, SLOW = "FastGenErrorBudgetBurnsFast", "FastGenErrorBudgetBurnsSlowly"
NO_REPLICA, MISSING = "FastGenNoReplicaReady", "FastGenMetricsMissing"
BLIND = "FastGenAutoscalerBlind"
SAMPLES = 6 * 60
"""A series' samples, one a minute."""
QUIET_AT = "5h"
"""When those are looked at that are not to fire."""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The groups of a PrometheusRule as a rule file; its SLO is 99 percent."""
    settings = Settings(Images("r:1", "c:1"))
    spec = Spec(Model("file:///models/a.gguf"))
    children = make_children(Owner("chat", "team", "u"), spec, settings, served=("PrometheusRule",))
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(children[-1]["spec"]))
    return path


def requests(**per_minute: float) -> dict[str, str]:
    """Counters of requests by outcome."""
    return {
        f'fastgen_requests_total{{{LABELS},outcome="{outcome}",pod="a"}}': f"0+{each}x{SAMPLES}"
        for outcome, each in per_minute.items()
    }


def decisions(**per_minute: float) -> dict[str, str]:
    """Counters of the autoscaler's decisions by rule."""
    return {
        f'fastgen_autoscaler_decisions_total{{{LABELS},rule="{rule}"}}': f"0+{each}x{SAMPLES}"
        for rule, each in per_minute.items()
    }


HEALTHY = {f'fastgen_balancer_endpoints{{{LABELS},pod="{pod}"}}': f"1x{SAMPLES}" for pod in "bc"}
LATE = f'fastgen_requests_total{{{LABELS},outcome="late_first_token",pod="a"}}'

SCENES: list[tuple[str, dict[str, str], dict[str, tuple[str, str]]]] = [
    ("all is well", HEALTHY | requests(good=100, error=0.5), {}),
    ("half of it is bad", HEALTHY | requests(good=50, late_first_token=30, error=20),
     {FAST: ("10m", "50%"), SLOW: ("30m", "50%")}),
    ("two in a hundred are bad", HEALTHY | requests(good=98, slow_tokens=2),
     {SLOW: ("30m", "2%")}),
    ("only clients err", HEALTHY | requests(good=10, excluded=1000), {}),
    ("one unlucky request at night",
     HEALTHY | requests(good=0.02) | {LATE: "0x285 1x90"}, {}),
    ("no traffic", HEALTHY | requests(good=0, error=0), {}),
    ("no replica", dict.fromkeys(HEALTHY, f"0x{SAMPLES}"), {NO_REPLICA: ("10m", "")}),
    ("no balancer", {}, {MISSING: ("20m", "")}),
    ("the autoscaler is blind",
     HEALTHY | decisions(NoSignal=4, Steady=1),
     {BLIND: ("30m", "")}),
    ("the autoscaler was blind for a moment",
     HEALTHY | decisions(NoSignal=1, Steady=4), {}),
]  # fmt: skip


def test_prometheus_takes_the_rules(rules: Path) -> None:
    report = run(promtool(), "check", "rules", "--lint=all", "--lint-fatal", rules)
    assert "SUCCESS: 5 rules found" in report


@pytest.mark.parametrize(("series", "firing"), [each[1:] for each in SCENES],
                         ids=[each[0] for each in SCENES])  # fmt: skip
def test_alerts_fire_when_they_should(
    rules: Path, tmp_path: Path, series: dict[str, str], firing: dict[str, tuple[str, str]]
) -> None:
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    checks = []
    for rule in group["rules"]:
        when, value = firing.get(rule["alert"], (QUIET_AT, ""))
        annotations = {
            name: text.replace("{{ $value | humanizePercentage }}", value)
            for name, text in rule["annotations"].items()
        }
        alert = {"exp_labels": rule["labels"], "exp_annotations": annotations}
        checks.append({
            "eval_time": when,
            "alertname": rule["alert"],
            "exp_alerts": [alert] if rule["alert"] in firing else [],
        })  # fmt: skip
    scene = {
        "rule_files": [str(rules)],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": text} for name, text in series.items()],
                "alert_rule_test": checks,
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(scene))
    run(promtool(), "test", "rules", path)


@pytest.fixture
def no_definitions(cluster: Commands) -> Iterator[None]:
    """The cluster knows no PodMonitor and no PrometheusRule, before and after."""
    names = [f"{kind.lower()}s.monitoring.coreos.com" for kind in MONITORING_KINDS]
    remove = ("delete", "crd", *names, "--ignore-not-found", "--wait")
    cluster.kubectl(*remove)
    yield
    cluster.kubectl(*remove)


def complaints(operator: OperatorProcess, since: int) -> list[str]:
    """Lines of the operator's log, from a size of it on, that a person should look at."""
    lines = operator.log.read_text()[since:].splitlines()
    return [line for line in lines if '"level": "warning"' in line or '"level": "error"' in line]


def test_kinds_of_the_prometheus_operator_are_used_while_they_are_there(
    cluster: Commands, operator: OperatorProcess, no_definitions: None
) -> None:
    operator.create("watched")

    def made() -> dict[str, Any]:
        try:
            found = operator.get("podmonitors,prometheusrules")["items"]
        except CommandError:
            return {}
        return {each["kind"]: each for each in found}

    wait_until("children", lambda: operator.find("deployment", "watched-replica"), seconds=30)
    start = operator.log.stat().st_size
    for definition in monitoring_definitions():
        cluster.kubectl("create", "-f", str(definition))
    children = wait_until(
        "monitor and rule", lambda: made() if len(made()) == 2 else None, seconds=90
    )
    for child in children.values():
        assert child["metadata"]["ownerReferences"][0]["name"] == "watched"
    assert children["PrometheusRule"]["spec"]["groups"][0]["name"].endswith("-watched")

    rule = ("prometheusrule", "watched")
    operator.kubectl("patch", *rule, "--type=merge", "-p", '{"spec": {"groups": []}}')
    wait_until("the rule again", lambda: operator.get(*rule)["spec"]["groups"], seconds=30)
    operator.kubectl("delete", *rule)
    wait_until("the rule anew", lambda: operator.find(*rule), seconds=30)

    for kind in MONITORING_KINDS:
        cluster.kubectl("delete", "crd", f"{kind.lower()}s.monitoring.coreos.com", "--wait")
    operator.patch("watched", {"slo": {"targetPercent": "97"}})
    wait_until(
        "the new SLO, without them",
        lambda: '"97"' in operator.get("configmap", "watched-slo")["data"]["slo.json"],
        seconds=30,
    )

    def is_quiet() -> bool:
        return not [text for text in operator.writes(time.time() - 5) if "monitoring" in text]

    wait_until("nobody asks for what is gone", is_quiet, seconds=60, pause=1)
    assert len(complaints(operator, start)) <= 2, complaints(operator, start)
    delete(operator, "watched")
