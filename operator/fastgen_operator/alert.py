"""What the rules of a PrometheusRule have in common: selectors, labels, annotations."""

import json
from typing import Final

from fastgen_api.names import MetricLabel, Outcome
from fastgen_api.spec import KubernetesObject
from fastgen_operator.owner import Owner

RUNBOOKS: Final = "docs/observability.md"
"""The page that has a section under each alert's name."""

CRITICAL: Final = "critical"
"""Somebody is to look now: users get no answers, or the month's error budget goes within days."""
WARNING: Final = "warning"
"""Somebody is to look at the next working day."""

BAD: Final = f'outcome!~"{Outcome.GOOD}|{Outcome.EXCLUDED}"'
COUNTED: Final = f'outcome!="{Outcome.EXCLUDED}"'
FAILED: Final = f'outcome=~"{Outcome.REFUSED}|{Outcome.ERROR}"'
REFUSED: Final = f'outcome="{Outcome.REFUSED}"'


def identity(owner: Owner) -> dict[str, str]:
    """The labels that our processes put on their series, and that the rules give theirs."""
    return {MetricLabel.DEPLOYMENT: owner.name, MetricLabel.NAMESPACE: owner.namespace}


def series(owner: Owner, metric: str, *more: str) -> str:
    """Selects a metric of one deployment, whoever scrapes it."""
    labels = (f"{name}={json.dumps(value)}" for name, value in identity(owner).items())
    return f"{metric}{{{','.join((*labels, *more))}}}"


def recording(owner: Owner, record: str, expression: str) -> KubernetesObject:
    """A rule that keeps a value as a series."""
    return {"record": record, "expr": expression, "labels": identity(owner)}


def alert(
    owner: Owner,
    name: str,
    expression: str,
    hold: str,
    severity: str,
    summary: str,
    description: str,
) -> KubernetesObject:
    """hold: how long the expression must have held, such as 5m."""
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": {"severity": severity, **identity(owner)},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook": f"{RUNBOOKS}#{name.lower()}",
        },
    }
