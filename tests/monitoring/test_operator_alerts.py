"""When the chart's alerts on the operator fire, as Prometheus' own promtool judges them."""

from pathlib import Path
from typing import Final

import operator_alerts
import pytest
import yaml
from promtool import promtool
from scenes import HOUR, MINUTE, Phase, counter, gauge

from fastgen_devcluster.command import run

OWN: Final = f'job="{operator_alerts.JOB}",instance="a"'
OTHER: Final = 'job="elsewhere/fastgen",instance="b"'
FAIL, BEHIND = "FastGenReconcilesFail", "FastGenOperatorBehind"
MISSING = "FastGenOperatorMissing"


def operator(labels: str, queued: str, **per_minute: float) -> dict[str, str]:
    phases = (Phase(HOUR, per_minute),)
    counters = {
        f'fastgen_operator_reconciles_total{{{labels},outcome="{outcome}"}}': counter(
            phases, outcome
        )
        for outcome in per_minute
    }
    return counters | {f"fastgen_operator_queued_deployments{{{labels}}}": queued}


IDLE: Final = gauge(0, HOUR)

SCENES: Final = [
    ("all is well", operator(OWN, IDLE, ok=60, error=0), {"50m": set()}),
    ("a conflict now and then", operator(OWN, IDLE, ok=60, error=0.2), {"50m": set()}),
    ("one deployment fails all the time", operator(OWN, IDLE, ok=60, error=1),
     {"15m": set(), "25m": {FAIL}}),
    ("another installation's fails", operator(OWN, IDLE, ok=1) | operator(OTHER, IDLE, error=9),
     {"50m": set()}),
    ("it does not keep up", operator(OWN, gauge(3, HOUR), ok=60), {"20m": {BEHIND}}),
    ("it was behind for a moment", operator(OWN, f"3x{5 * MINUTE} 0x{HOUR}", ok=60),
     {"8m": set(), "20m": set()}),
    ("it is gone", operator(OTHER, IDLE, ok=60), {"9m": set(), "12m": {MISSING}}),
]  # fmt: skip


def rule_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(operator_alerts.text())
    return path


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    report = run(promtool(), "check", "rules", "--lint=all", "--lint-fatal", rule_file(tmp_path))
    assert "SUCCESS: 3 rules found" in report


@pytest.mark.parametrize(("series", "firing"), [each[1:] for each in SCENES],
                         ids=[each[0] for each in SCENES])  # fmt: skip
def test_alerts_fire_when_they_should_and_no_others(
    series: dict[str, str], firing: dict[str, set[str]], tmp_path: Path
) -> None:
    tests = [
        {
            "eval_time": when,
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fired)
            ],
        }
        for when, fired in firing.items()
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    scene = {
        "rule_files": [str(rule_file(tmp_path))],
        "evaluation_interval": "30s",
        "tests": [{"interval": "15s", "input_series": inputs, "promql_expr_test": tests}],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(scene))
    run(promtool(), "test", "rules", path)
