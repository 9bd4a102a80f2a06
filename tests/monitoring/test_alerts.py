"""When the alerts of a deployment fire, as Prometheus' own promtool judges them."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from promtool import promtool
from scenes import HOUR, MINUTE, Phase, counter, gauge

from fastgen_api.spec import SLO, Model, Scaling, Spec
from fastgen_devcluster.command import run
from fastgen_operator.children import make_children
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

LABELS: Final = 'deployment="chat",deployment_namespace="team"'
FAST, SLOW = "FastGenErrorBudgetBurnsFast", "FastGenErrorBudgetBurnsSlowly"
FAIL, REFUSED = "FastGenRequestsFail", "FastGenRequestsRefused"
NO_REPLICA, MISSING = "FastGenNoReplicaReady", "FastGenMetricsMissing"
FEWER, RESTART = "FastGenReplicasMissing", "FastGenReplicasRestart"
BLIND, INFEASIBLE = "FastGenAutoscalerBlind", "FastGenSLOInfeasible"
MOST, RETRIES = "FastGenAtMaxReplicas", "FastGenManyRetries"

Series = dict[str, str]


def rule_file(folder: Path, target_percent: str) -> Path:
    """The groups of a PrometheusRule as a rule file; at most two replicas."""
    spec = Spec(
        Model("file:///models/a.gguf"),
        slo=SLO(target_percent=target_percent),
        scaling=Scaling(max_replicas=2),
    )
    settings = Settings(Images("r:1", "c:1"))
    children = make_children(Owner("chat", "team", "u"), spec, settings, served=("PrometheusRule",))
    path = folder / f"rules-{target_percent}.yaml"
    path.write_text(yaml.safe_dump(children[-1]["spec"]))
    return path


def requests(*phases: Phase, pod: str = "a", **per_minute: float) -> Series:
    """Counters of requests by outcome: at one pace, or in phases of their own."""
    steps = phases or (Phase(6 * HOUR, per_minute),)
    outcomes = sorted({outcome for phase in steps for outcome in phase.per_minute})
    return {
        f'fastgen_requests_total{{{LABELS},outcome="{outcome}",pod="{pod}"}}': counter(
            steps, outcome
        )
        for outcome in outcomes
    }


def decisions(**per_minute: float) -> Series:
    """Counters of the autoscaler's decisions by rule."""
    steps = (Phase(2 * HOUR, per_minute),)
    return {
        f'fastgen_autoscaler_decisions_total{{{LABELS},rule="{rule}"}}': counter(steps, rule)
        for rule in per_minute
    }


def of_all(name: str, values: str, *more: str) -> Series:
    return {f"{name}{{{','.join((LABELS, *more))}}}": values}


ENDPOINTS: Final = of_all("fastgen_balancer_endpoints", gauge(2, 6 * HOUR), 'pod="b"')
REPLICAS: Final = of_all("fastgen_running_requests", gauge(1, 6 * HOUR), 'pod="a"')
DESIRED: Final = of_all("fastgen_autoscaler_desired_replicas", gauge(2, 6 * HOUR))
HEALTHY: Final = ENDPOINTS | REPLICAS

GOOD = {"good": 100, "error": 0}
BROKEN = {"good": 0, "error": 100}


def of_a_neighbour(series: Series) -> Series:
    """The same series as the same pods tell them of another deployment."""
    return {name.replace('deployment="chat"', 'deployment="code"'): values
            for name, values in series.items()}  # fmt: skip


SCENES: list[tuple[str, str, Series, dict[str, set[str]]]] = [
    # What, the target in percent, the series, and which alerts fire at which time: no others.
    ("no traffic", "99", HEALTHY | requests(good=0, error=0), {"2m": set(), "3h": set()}),
    ("three nines held by steady traffic", "99.9", HEALTHY | requests(good=1000, error=0.9),
     {"5m": set(), "1h": set(), "5h": set()}),
    ("all requests fail of a neighbour behind the same balancer", "99",
     HEALTHY | requests(good=10) | of_a_neighbour(ENDPOINTS | requests(**BROKEN)),
     {"3m": set(), "40m": set()}),
    ("only clients err", "99", HEALTHY | requests(good=10, excluded=1000), {"3h": set()}),
    ("all requests fail from one moment on", "99",
     HEALTHY | requests(Phase(2 * HOUR, GOOD), Phase(HOUR, BROKEN)),
     {"2h": set(), "2h2m30s": {FAIL}, "2h14m": {FAIL, FAST}}
     | {"2h40m": {FAIL, FAST, SLOW, MOST}}),
    ("all requests fail, three nines", "99.9",
     HEALTHY | requests(Phase(2 * HOUR, GOOD), Phase(HOUR, BROKEN)), {"2h2m30s": {FAIL, FAST}}),
    ("all requests fail from the first on", "99", HEALTHY | requests(**BROKEN),
     {"2m30s": {FAIL, FAST}}),
    ("all is well again", "99",
     HEALTHY | requests(Phase(HOUR, GOOD), Phase(30 * MINUTE, BROKEN), Phase(3 * HOUR, GOOD)),
     {"85m": {FAIL, FAST, SLOW, MOST}, "93m": {FAST, SLOW, MOST}, "2h10m": {SLOW}}),
    ("nobody asks any more after an outage", "99",
     HEALTHY | requests(Phase(HOUR, GOOD), Phase(30 * MINUTE, BROKEN), Phase(3 * HOUR, {})),
     {"2h10m": {SLOW}}),
    ("all requests are late", "99", HEALTHY | requests(late_first_token=50),
     {"3m": {FAST}, "30m": {FAST, SLOW, MOST}}),
    ("two in a hundred are bad", "99", HEALTHY | requests(good=98, slow_tokens=2),
     {"15m": set(), "40m": {SLOW, MOST}, "3h": {SLOW, MOST}}),
    ("one unlucky request at night", "99",
     HEALTHY | requests(Phase(2 * HOUR, {"good": 0.1, "token_gap": 0}),
                        Phase(10 * MINUTE, {"good": 0.1, "token_gap": 0.1}),
                        Phase(HOUR, {"good": 0.1, "token_gap": 0})),
     {"2h5m": set(), "2h12m": set(), "3h": set()}),
    ("four bad requests are all there is", "99",
     HEALTHY | requests(Phase(4 * MINUTE, {"error": 1}), Phase(HOUR, {"error": 0})),
     {"3m": set(), "5m": set(), "40m": set()}),
    ("one in ten is refused, the target is loose", "95",
     HEALTHY | requests(good=90, refused=10), {"3h": {REFUSED, SLOW, MOST}}),
    ("the target allows as many refusals", "80",
     HEALTHY | requests(good=90, refused=10), {"3h": set()}),
    ("no series of the replicas: refusals are all that is known", "99",
     ENDPOINTS | requests(refused=20), {"9m": set(), "11m": {MISSING}, "3h": {MISSING}}),
    ("no series at all", "99", {}, {"9m": set(), "11m": {MISSING}, "3h": {MISSING}}),
    ("metrics end amid an outage", "99",
     of_all("fastgen_balancer_endpoints", gauge(2, HOUR), 'pod="b"')
     | of_all("fastgen_running_requests", gauge(1, HOUR), 'pod="a"')
     | requests(Phase(HOUR, BROKEN)),
     {"58m": {FAIL, FAST, SLOW, MOST}, "3h": {MISSING, SLOW}}),
    ("no replica", "99",
     of_all("fastgen_balancer_endpoints", gauge(0, 2 * HOUR), 'pod="b"') | requests(refused=30),
     {"3m": {FAIL, FAST}, "10m": {FAIL, FAST, NO_REPLICA}}),
    ("one replica of two stays away", "99",
     of_all("fastgen_balancer_endpoints", gauge(1, 2 * HOUR), 'pod="b"') | REPLICAS,
     {"25m": set(), "35m": {FEWER}}),
    ("a replica crashes every five minutes", "99",
     HEALTHY | of_all("fastgen_start_time_seconds",
                      " ".join(f"{1000 + 300 * n}x{4 * 5 - 1}" for n in range(12)), 'pod="a"'),
     {"12m": set(), "20m": {RESTART}}),
    ("a replica crashed once", "99",
     HEALTHY | of_all("fastgen_start_time_seconds", f"1000x40 2000x{2 * HOUR}", 'pod="a"'),
     {"15m": set(), "1h": set()}),
    ("the autoscaler is blind", "99", HEALTHY | decisions(NoSignal=4, Steady=1),
     {"30m": {BLIND}}),
    ("the autoscaler was blind for a moment", "99", HEALTHY | decisions(NoSignal=1, Steady=4),
     {"30m": set()}),
    ("more replicas would not help", "99", HEALTHY | decisions(SLOInfeasible=4, Steady=1),
     {"30m": {INFEASIBLE}}),
    ("many requests are sent twice", "99",
     HEALTHY | of_all("fastgen_retries_total", counter((Phase(HOUR, {"x": 6}),), "x"))
     | of_all("fastgen_balancer_picks_total", counter((Phase(HOUR, {"x": 60}),), "x"),
              'result="picked"'),
     {"30m": {RETRIES}}),
    ("few requests are sent twice", "99",
     HEALTHY | of_all("fastgen_retries_total", counter((Phase(HOUR, {"x": 0.6}),), "x"))
     | of_all("fastgen_balancer_picks_total", counter((Phase(HOUR, {"x": 60}),), "x"),
              'result="picked"'),
     {"30m": set()}),
]  # fmt: skip


@pytest.mark.parametrize("target_percent", ["99", "50", "99.999"])
def test_prometheus_takes_the_rules(target_percent: str, tmp_path: Path) -> None:
    rules = rule_file(tmp_path, target_percent)
    report = run(promtool(), "check", "rules", "--lint=all", "--lint-fatal", rules)
    assert "SUCCESS: 21 rules found" in report


@pytest.mark.parametrize(("target_percent", "series", "firing"), [each[1:] for each in SCENES],
                         ids=[each[0] for each in SCENES])  # fmt: skip
def test_alerts_fire_when_they_should_and_no_others(
    target_percent: str, series: Series, firing: dict[str, set[str]], tmp_path: Path
) -> None:
    path = rule_file(tmp_path, target_percent)
    (group,) = yaml.safe_load(path.read_text())["groups"]
    alerts = {rule["alert"]: rule for rule in group["rules"] if "alert" in rule}
    for fired in firing.values():
        assert fired <= set(alerts)
    wanted: list[dict[str, Any]] = [
        {
            "eval_time": when,
            # A value in words is not what this is about.
            "expr": f'count by (alertname, severity) (ALERTS{{{LABELS},alertstate="firing"}})',
            "exp_samples": [
                {
                    "labels": f'{{alertname="{name}",severity="{severity_of(alerts[name])}"}}',
                    "value": 1,
                }
                for name in sorted(fired)
            ],
        }
        for when, fired in firing.items()
    ]
    judge(path, DESIRED | series if series else series, promql_expr_test=wanted)


def judge(rules: Path, series: Series, **tests: Any) -> None:
    """Raises CommandError with promtool's complaint."""
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    scene = {
        "rule_files": [str(rules)],
        "evaluation_interval": group["interval"],
        "tests": [{"interval": "15s", "input_series": inputs, **tests}],
    }
    path = rules.parent / "test.yaml"
    path.write_text(yaml.safe_dump(scene))
    run(promtool(), "test", "rules", path)


def severity_of(rule: dict[str, Any]) -> str:
    return str(rule["labels"]["severity"])


def test_an_alert_says_how_bad_it_is_and_where_to_read_on(tmp_path: Path) -> None:
    path = rule_file(tmp_path, "99")
    (group,) = yaml.safe_load(path.read_text())["groups"]
    (rule,) = (rule for rule in group["rules"] if rule.get("alert") == FAST)
    summary = "chat misses its SLO: 50% of its requests are not good"
    wanted = {
        "exp_labels": rule["labels"],
        "exp_annotations": rule["annotations"] | {"summary": summary},
    }
    judge(
        path,
        HEALTHY | requests(good=50, error=50),
        alert_rule_test=[{"eval_time": "10m", "alertname": FAST, "exp_alerts": [wanted]}],
    )
