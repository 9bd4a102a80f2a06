"""PodMonitor and PrometheusRule: which are made, and when their alerts fire."""

import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api import names
from fastgen_api.spec import SLO, Model, Scaling, ScalingMode, Spec
from fastgen_balancer.decision import Rule
from fastgen_operator.alerts import NO_SIGNAL, SLO_INFEASIBLE
from fastgen_operator.burn_rates import EVALUATION_SECONDS, FAST, SLOW, burn_limit
from fastgen_operator.children import make_children
from fastgen_operator.monitoring import MONITORING_KINDS
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Settings, SettingsError, settings_from

ENVIRONMENT = {"FASTGEN_RUNTIME_IMAGE": "r:1", "FASTGEN_CONTROL_IMAGE": "c:1"}
SETTINGS = settings_from(ENVIRONMENT)
OWNER = Owner("chat", "team", "uid-1")
SPEC = Spec(Model("file:///models/a.gguf"))


def made(
    spec: Spec = SPEC, served: tuple[str, ...] = MONITORING_KINDS, settings: Settings = SETTINGS
) -> dict[str, Any]:
    children = make_children(OWNER, spec, settings, served=served)
    return {child["kind"]: child for child in children if child["kind"] in MONITORING_KINDS}


def rules(spec: Spec = SPEC) -> list[dict[str, Any]]:
    (group,) = made(spec)["PrometheusRule"]["spec"]["groups"]
    assert group["interval"] == f"{EVALUATION_SECONDS}s", "counts rest on it"
    return list(group["rules"])


def alerts(spec: Spec = SPEC) -> dict[str, Any]:
    return {rule["alert"]: rule for rule in rules(spec) if "alert" in rule}


@pytest.mark.parametrize("served", [(), ("PodMonitor",), ("PrometheusRule",), MONITORING_KINDS])
def test_only_kinds_that_the_cluster_knows_are_made(served: tuple[str, ...]) -> None:
    assert tuple(made(served=served)) == served


def test_they_can_be_switched_off_and_labelled() -> None:
    off = settings_from(ENVIRONMENT | {"FASTGEN_MONITORING": "false"})
    assert not made(settings=off)
    labels = {"FASTGEN_MONITORING_LABELS": "release=kube-prometheus-stack,fastgen.dev/deployment=x"}
    for child in made(settings=settings_from(ENVIRONMENT | labels)).values():
        assert child["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        assert child["metadata"]["labels"]["fastgen.dev/deployment"] == "chat"
    with pytest.raises(SettingsError, match="FASTGEN_MONITORING_LABELS has 'release': use KEY=VA"):
        settings_from(ENVIRONMENT | {"FASTGEN_MONITORING_LABELS": "release"})


def test_the_monitor_finds_both_kinds_of_pods_by_a_port_that_they_have() -> None:
    monitor = made()["PodMonitor"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    for child in make_children(OWNER, SPEC, SETTINGS):
        if child["kind"] == "Deployment":
            pod = child["spec"]["template"]
            assert wanted <= pod["metadata"]["labels"].items()
            ports = [port["name"] for each in pod["spec"]["containers"] for port in each["ports"]]
            assert ports.count(endpoint["port"]) == 1


@pytest.mark.parametrize(
    ("factor", "target", "limit"),
    [
        ("14.4", "99", "0.144"),
        ("14.4", "99.95", "0.0072"),
        ("6", "99.9", "0.006"),
        ("1", "95", "0.05"),
        ("14.4", "95", "0.525"),
        ("14.4", "90", "0.55"),
        ("6", "50", "0.75"),
        ("14.4", "0.5", "0.9975"),
    ],
)
def test_limits_of_burn_rates(factor: str, target: str, limit: str) -> None:
    allowed = 1 - Decimal(target) / 100
    assert burn_limit(Decimal(factor), allowed) == Decimal(limit)


@given(st.decimals("0.1", "99.999", places=3))
def test_every_alert_can_fire_and_none_fires_while_the_slo_is_held(target: Decimal) -> None:
    allowed = 1 - target / 100
    for burn in (*FAST, *SLOW):
        assert allowed <= burn_limit(burn.factor, allowed) < 1


def test_the_rules_that_alerts_read_are_the_autoscalers() -> None:
    assert NO_SIGNAL == Rule.NO_SIGNAL
    assert SLO_INFEASIBLE == Rule.SLO_INFEASIBLE


def test_there_are_alerts_only_for_what_is_wanted() -> None:
    everything = {
        "FastGenErrorBudgetBurnsFast", "FastGenErrorBudgetBurnsSlowly", "FastGenRequestsFail",
        "FastGenRequestsRefused", "FastGenManyRetries", "FastGenMetricsMissing",
        "FastGenReplicasRestart", "FastGenNoReplicaReady", "FastGenReplicasMissing",
        "FastGenAutoscalerBlind", "FastGenSLOInfeasible", "FastGenAtMaxReplicas",
    }  # fmt: skip
    assert set(alerts()) == everything
    advised = msgspec.structs.replace(SPEC, scaling=Scaling(mode=ScalingMode.RECOMMEND))
    assert set(alerts(advised)) == everything - {"FastGenAtMaxReplicas"}
    by_hand = msgspec.structs.replace(SPEC, scaling=Scaling(mode=ScalingMode.DISABLED))
    of_the_autoscaler = {"FastGenAutoscalerBlind", "FastGenSLOInfeasible", "FastGenAtMaxReplicas"}
    assert set(alerts(by_hand)) == everything - of_the_autoscaler
    asleep = msgspec.structs.replace(by_hand, replicas=0)
    of_replicas = {"FastGenNoReplicaReady", "FastGenReplicasMissing"}
    assert set(alerts(asleep)) == everything - of_the_autoscaler - of_replicas


def test_the_rule_is_not_written_anew_when_the_autoscaler_scales() -> None:
    scaling = Scaling(max_replicas=8)
    few, many = (msgspec.structs.replace(SPEC, scaling=scaling, replicas=n) for n in (2, 7))
    assert rules(few) == rules(many)
    may_sleep = Scaling(min_replicas=0, max_replicas=8)
    asleep, awake = (msgspec.structs.replace(SPEC, scaling=may_sleep, replicas=n) for n in (0, 2))
    assert rules(asleep) == rules(awake)
    assert "FastGenNoReplicaReady" not in alerts(awake)
    by_hand = msgspec.structs.replace(few, scaling=Scaling(mode=ScalingMode.DISABLED))
    assert alerts(by_hand)["FastGenReplicasMissing"]["expr"].endswith(" < 2")


def test_rules_read_series_that_exist() -> None:
    """Ours by their names, or what an earlier rule of the group records."""
    known = {value for name, value in vars(names.Metric).items() if name.isupper()}
    for rule in rules():
        read = set(re.findall(r"\bfastgen[a-z0-9_:]+", rule["expr"]))
        assert read
        assert read <= known, read - known
        known |= {rule["record"]} if "record" in rule else set()


def test_alerts_name_the_deployment_and_its_target() -> None:
    spec = msgspec.structs.replace(SPEC, slo=SLO(target_percent="99.9"))
    for alert in alerts(spec).values():
        assert alert["labels"]["deployment"] == "chat"
        assert alert["labels"]["deployment_namespace"] == "team"
        assert 'deployment="chat",deployment_namespace="team"' in alert["expr"]
        assert "chat" in alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("critical", "warning")
    fast = alerts(spec)["FastGenErrorBudgetBurnsFast"]
    assert "> 0.0144" in fast["expr"]
    assert "99.9 percent" in fast["annotations"]["description"]
