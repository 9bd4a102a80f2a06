"""The chart's dashboard: written from its source, whole, and asking only for what exists."""

import json
import re
from itertools import pairwise
from typing import Any, Final

import dashboard
import pytest
from grafana import GRID_WIDTH, Panel

from fastgen_api import names

METRICS: Final = {value for name, value in vars(names.Metric).items() if name.isupper()}
BUILT: Final[dict[str, Any]] = dashboard.built()
PANELS: Final = [panel for row in dashboard.ROWS for panel in row.panels]
SUFFIXES: Final = re.compile(r"_(bucket|count|sum)$")
UNITS: Final = {"percentunit", "s", "reqps", "ops", "bytes", "none"}
"""Grafana's own, as its field options name them; other units are a suffix."""
GRAFANAS_OWN: Final = {"datasource", "__rate_interval", "__range"}


def metrics_of(expression: str) -> set[str]:
    """The names before selectors, and bare ones, of ours and of others."""
    found = re.findall(r"\b(?:fastgen|process)_[a-z_]+|\bALERTS\b", expression)
    return {name if name in METRICS else SUFFIXES.sub("", name) for name in found}


def test_the_file_and_the_page_are_those_of_their_source() -> None:
    assert dashboard.TARGET.read_text() == dashboard.text(), "run `make chart`"
    page = dashboard.PAGE.read_text()
    assert page == dashboard.page_with_table(page), "run `make chart`"


def test_a_page_without_the_tables_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"observability\.md must hold"):
        dashboard.page_with_table("# Observability\n")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_has_a_unit_and_says_what_to_do(panel: Panel) -> None:
    assert panel.unit in UNITS or panel.unit.startswith("suffix: ")
    assert re.fullmatch(r"[A-Z`].{30,}\.", panel.description), panel.description
    assert "|" not in panel.description, "it is a cell of a table"
    assert panel.queries
    legends = [query.legend for query in panel.queries]
    assert len(set(legends)) == len(legends)
    assert panel.is_number or all(legends)


def test_panels_have_names_of_their_own() -> None:
    titles = [panel.title for panel in PANELS]
    assert len(set(titles)) == len(titles)


def test_queries_ask_for_series_that_exist() -> None:
    known = METRICS | set(dashboard.FOREIGN_SERIES)
    for title, query in dashboard.queries():
        read = metrics_of(query.expression)
        assert read, title
        assert read <= known, (title, read - known)
    for variable in dashboard.VARIABLES:
        assert metrics_of(variable.query) <= METRICS


def test_every_metric_is_drawn_or_left_out_on_purpose() -> None:
    drawn = {name for _, query in dashboard.queries() for name in metrics_of(query.expression)}
    assert METRICS - drawn == {names.Metric.KNOWN_OBJECTS}


def test_queries_ask_with_the_dashboards_variables_alone() -> None:
    known = {variable.name for variable in dashboard.VARIABLES} | GRAFANAS_OWN
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BUILT)))
    assert used <= known, used - known
    assert {"namespace", "deployment", "datasource"} <= used


def test_panels_fill_the_grid_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BUILT["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in BUILT["panels"]]
    assert len(set(ids)) == len(ids)
    rows = [panel["gridPos"]["y"] for panel in BUILT["panels"] if panel["type"] == "row"]
    assert all(one < next_one for one, next_one in pairwise(rows))


def test_a_configmap_holds_it() -> None:
    assert len(dashboard.text().encode()) < 512 * 1024
