"""Panels into Grafana's dashboard model: classic JSON of the schema that Grafana 12 writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 42
GRID_WIDTH: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TARGET_LEGEND: Final = "target"
"""A line of this legend is dashed: what is asked for, beside what is."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """One line, or several that the legend tells apart."""

    expression: str
    legend: str = ""
    may_be_empty: bool = False
    """Without data while nothing is amiss: such an event has not happened, nothing is asked for."""


@dataclass(frozen=True, slots=True)
class Panel:
    """What one picture shows, and what its reader may do about it."""

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    is_number: bool = False
    """One figure over the shown range, instead of lines."""
    stacked: bool = False
    limits: tuple[float, ...] = ()
    """Values above which it gets serious, drawn as lines."""
    most: float | None = None
    """Upper end of the axis; None: as the values need."""

    @property
    def width(self) -> int:
        """In columns of the grid."""
        return 6 if self.is_number else 8

    @property
    def height(self) -> int:
        """In rows of the grid."""
        return 4 if self.is_number else 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the dashboard's top."""

    name: str
    label: str
    query: str
    """Of label values; empty: a choice of the Prometheus data source."""


def dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Iterable[Variable],
    marks: Query,
    rows: Sequence[Row],
) -> Json:
    """marks: drawn as vertical lines over all panels, each with the legend as its text."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["fastgen"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [],
        "annotations": {"list": [_mark(marks)]},
        "templating": {"list": [_variable(variable) for variable in variables]},
        "panels": _placed(rows),
    }


def _mark(query: Query) -> Json:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": query.expression,
        "titleFormat": query.legend,
        "step": "30s",
    }


def _variable(variable: Variable) -> Json:
    shared = {"name": variable.name, "label": variable.label, "current": {}, "multi": False}
    if not variable.query:
        return shared | {"type": "datasource", "query": "prometheus", "refresh": 1}
    query = {"qryType": 1, "query": variable.query, "refId": variable.name}
    return shared | {
        "type": "query",
        "datasource": DATASOURCE,
        "definition": variable.query,
        "query": query,
        # Anew when the time range changes, in alphabetical order.
        "refresh": 2,
        "sort": 1,
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Row by row, each panel right of the one before while there is room."""
    placed: list[Json] = []
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append(heading | {"id": len(placed) + 1, "gridPos": place})
        left, top, bottom = 0, top + 1, top + 1
        for panel in row.panels:
            if left + panel.width > GRID_WIDTH or (left and top + panel.height < bottom):
                left, top = 0, bottom
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            placed.append(_panel(panel) | {"id": len(placed) + 1, "gridPos": place})
            left, bottom = left + panel.width, max(bottom, top + panel.height)
        top = bottom
    return placed


def _panel(panel: Panel) -> Json:
    return {
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_dashed()]},
        "options": _options(panel),
    }


def _target(panel: Panel, number: int) -> Json:
    query = panel.queries[number]
    return {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "instant": panel.is_number,
        "range": not panel.is_number,
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [{"color": "red", "value": limit} for limit in panel.limits]
    found: Json = {
        "unit": panel.unit,
        "noValue": "no data",
        "color": {"mode": "thresholds" if panel.is_number else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.is_number:
        return found
    if panel.most is not None:
        found["max"] = panel.most
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": stacking,
        "thresholdsStyle": {"mode": "dashed" if panel.limits else "off"},
    }
    return found | {"min": 0, "custom": custom}


def _dashed() -> Json:
    style = {"fill": "dash", "dash": [6, 6]}
    return {
        "matcher": {"id": "byRegexp", "options": f"/{TARGET_LEGEND}$/"},
        "properties": [
            {"id": "custom.lineStyle", "value": style},
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "text"}},
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.is_number:
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
