"""The dashboard's queries, as Prometheus' own promtool reads them against our own series."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dashboard
import pytest
import yaml
from expositions import DEPLOYMENT, NAMESPACE, expositions
from grafana import Query
from prometheus_client.samples import Sample
from promtool import promtool

from fastgen_devcluster.command import CommandError, run

CHOSEN: Final = {
    "$deployment": DEPLOYMENT,
    "$namespace": NAMESPACE,
    "$__rate_interval": "1m",
    "$__range": "1h",
}
"""What Grafana puts in a query's place of these."""


def asked(query: Query) -> str:
    text = query.expression
    for variable, value in CHOSEN.items():
        text = text.replace(variable, value)
    assert "$" not in text, "a variable that the dashboard does not have"
    return text


def series() -> Iterator[dict[str, str]]:
    """Two hours of every series that our pods expose: counters grow, gauges stay."""
    for exposition in expositions():
        for family in exposition.families:
            for sample in family.samples:
                is_growing = family.type in ("counter", "histogram")
                value = f"{sample.value:g}"
                values = f"{value}+2x480" if is_growing else f"{value}x480"
                yield {"series": _named(sample, exposition.pod), "values": values}


def _named(sample: Sample, pod: str) -> str:
    labels = {**sample.labels, "instance": pod, "job": "pods"}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{sample.name}{{{text}}}"


def judge(path: Path, *tests: dict[str, object]) -> None:
    scene = {
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "15s", "input_series": list(series()), "promql_expr_test": list(tests)}
        ],
    }
    path.write_text(yaml.safe_dump(scene))
    run(promtool(), "test", "rules", path)


def some(expression: str) -> dict[str, object]:
    """Data, and among it a number: NaN is no answer."""
    return {
        "expr": f"count(({expression}) > -Inf) > bool 0",
        "eval_time": "90m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }


def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": asked(query)}
        for number, (_, query) in enumerate(dashboard.queries())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    report = run(promtool(), "check", "rules", path)
    assert f"SUCCESS: {len(rules)} rules found" in report


def test_every_query_finds_what_our_pods_expose(tmp_path: Path) -> None:
    """Names and labels fit: a query that reads a label which no series has finds nothing."""
    tests = [some(asked(query)) for title, query in dashboard.queries() if title != "Alerts"]
    judge(tmp_path / "test.yaml", *tests)


def test_a_label_that_no_series_has_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="nil"):
        judge(tmp_path / "test.yaml", some('fastgen_running_requests{namespace="team"}'))
