"""Writes the chart's alerts on the operator itself: `python charts/operator_alerts.py`.

Those on each FastGenDeployment are made by the operator, beside the deployment.
"""

import json
from pathlib import Path
from typing import Any, Final

from fastgen_api.names import Metric

REPOSITORY: Final = Path(__file__).resolve().parents[1]
TARGET: Final = REPOSITORY / "charts" / "fastgen" / "files" / "operator-alerts.json"
JOB: Final = "NAMESPACE/NAME"
"""Stands for the job of the chart's PodMonitor, which the template puts in its place: each
installation is told of its own operator only."""
RUNBOOKS: Final = "docs/observability.md"
LEAST_ERRORS: Final = 5
"""Within a quarter of an hour: one conflict that passes is none of anybody's business."""


def of(metric: str, *more: str) -> str:
    """The series of this installation's operator."""
    return f"{metric}{{{','.join((f'job={json.dumps(JOB)}', *more))}}}"


def alert(name: str, expression: str, hold: str, summary: str, description: str) -> dict[str, Any]:
    """A warning: serving and scaling need no operator."""
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook": f"{RUNBOOKS}#{name.lower()}",
        },
    }


def group() -> dict[str, Any]:
    """The chart's group of rules."""
    errors = of(Metric.RECONCILES, 'outcome="error"')
    rules = [
        alert(
            "FastGenReconcilesFail",
            f"sum(increase({errors}[15m])) >= {LEAST_ERRORS}",
            "15m",
            "the FastGen operator cannot bring about what is declared",
            "Reconciles fail, and are tried again. Its log names the FastGenDeployments and the "
            "reason; their condition Stalled does, too.",
        ),
        alert(
            "FastGenOperatorBehind",
            f"min_over_time({of(Metric.QUEUED_DEPLOYMENTS)}[10m]) > 0",
            "5m",
            "the FastGen operator does not keep up",
            "FastGenDeployments have been due for reconciling without a break. The API server is "
            "slow, or the operator has too little CPU.",
        ),
        alert(
            "FastGenOperatorMissing",
            f"absent({of(Metric.QUEUED_DEPLOYMENTS)})",
            "10m",
            "Prometheus has no metrics of the FastGen operator",
            "What runs is served and scaled; edits, deleted children and new deployments wait "
            "until it is back.",
        ),
    ]
    return {"name": "fastgen-operator", "rules": rules}


def text() -> str:
    """The file in the chart."""
    return json.dumps({"groups": [group()]}, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
