"""Writes the chart's Grafana dashboard, and its table in docs/observability.md.

`python charts/dashboard.py`
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grafana import Json, Query, Variable, dashboard
from panel_queries import FIRING
from pod_panels import BALANCER_ROW, OPERATOR_ROW, REPLICAS_ROW
from service_panels import SCALING_ROW, SLO_ROW, TRAFFIC_ROW

from fastgen_api.names import Metric, MetricLabel

REPOSITORY: Final = Path(__file__).resolve().parents[1]
TARGET: Final = REPOSITORY / "charts" / "fastgen" / "files" / "dashboard.json"
PAGE: Final = REPOSITORY / "docs" / "observability.md"
BEGIN: Final = "<!-- Written by charts/dashboard.py. -->\n"
END: Final = "<!-- Until here. -->\n"

FOREIGN_SERIES: Final = ("ALERTS", "process_resident_memory_bytes")
"""Series that are read and bear no name of ours: Prometheus' own, and every process'."""

VARIABLES: Final = (
    Variable("datasource", "Prometheus", ""),
    Variable(
        "namespace",
        "Namespace",
        f"label_values({Metric.ENDPOINTS}, {MetricLabel.NAMESPACE})",
    ),
    Variable(
        "deployment",
        "Deployment",
        f'label_values({Metric.ENDPOINTS}{{{MetricLabel.NAMESPACE}="$namespace"}}, '
        f"{MetricLabel.DEPLOYMENT})",
    ),
)
MARKS: Final = Query(FIRING, "{{alertname}}", may_be_empty=True)
ROWS: Final = (SLO_ROW, TRAFFIC_ROW, SCALING_ROW, REPLICAS_ROW, BALANCER_ROW, OPERATOR_ROW)


def built() -> Json:
    """The dashboard."""
    return dashboard(
        "fastgen-deployment",
        "FastGen",
        "One FastGenDeployment: its SLO, traffic, replicas and balancers; and the operator.",
        VARIABLES,
        MARKS,
        ROWS,
    )


def queries() -> Iterator[tuple[str, Query]]:
    """Every query with the title of its panel."""
    yield "Alerts", MARKS
    for row in ROWS:
        for panel in row.panels:
            for query in panel.queries:
                yield panel.title, query


def text() -> str:
    """The file in the chart."""
    return json.dumps(built(), indent=1, ensure_ascii=False) + "\n"


def table() -> str:
    """The panels for the page, by row."""
    lines = ["| row | panel | what it shows, and what to do |", "|---|---|---|"]
    for row in ROWS:
        heads = (row.title, *[""] * len(row.panels))
        lines += [
            f"| {head} | {panel.title} | {panel.description} |"
            for head, panel in zip(heads, row.panels, strict=False)
        ]
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    """The page with the table as it should be; raises ValueError when its place is not marked."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE.name} must hold {BEGIN.strip()} and {END.strip()} once each")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    TARGET.write_text(text())
    PAGE.write_text(page_with_table(PAGE.read_text()))
