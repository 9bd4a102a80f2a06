"""The page of observability, held against what pods expose, alerts and dashboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dashboard
import operator_alerts
import pytest
from expositions import Exposition, exposed_name, expositions

from fastgen_api import names
from fastgen_api.names import MetricLabel, Outcome, Phase, Target
from fastgen_api.spec import Model, Spec
from fastgen_balancer.decision import Blocker, Rule
from fastgen_balancer.metrics import PICKED
from fastgen_balancer.pick import Refusal
from fastgen_operator.alert import RUNBOOKS
from fastgen_operator.children import make_children
from fastgen_operator.kinds import WATCHED_KINDS
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings
from fastgen_operator.watch import Ending
from fastgen_runtime.front.goodness import End

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (REPOSITORY / "docs" / "observability.md").read_text()
METRICS: Final = {value for name, value in vars(names.Metric).items() if name.isupper()}
IDENTITY: Final = {MetricLabel.DEPLOYMENT, MetricLabel.NAMESPACE}
VALUES: Final = {
    MetricLabel.DEPLOYMENT: r"chat",
    MetricLabel.NAMESPACE: r"team",
    "outcome": "|".join((*Outcome, "ok")),
    "target": "|".join(Target),
    "end": "|".join(end.value for end in End),
    "result": "|".join((*Refusal, PICKED)),
    "rule": "|".join(Rule),
    "blocker": "|".join(Blocker),
    "phase": "|".join(Phase),
    "kind": "|".join((names.KIND, *WATCHED_KINDS)),
    "reason": "|".join((*Ending, "slow", "failing")),
    "method": r"[A-Z]{3,6}",
    "code": r"\d{1,3}",
    "le": r"[0-9.e+]+|\+Inf",
}
"""Labels and which values they may have: never a client's words."""


def tables(*head: str) -> Iterator[list[str]]:
    """The cells of each row of the tables that have this head."""
    is_inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or cells == list(head):
            is_inside = bool(cells)
        elif is_inside and set(cells[0]) != {"-"}:
            yield cells


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of each series, by its name."""
    found = {}
    for series, kind, meaning in tables("series", "kind", "meaning"):
        assert meaning
        for name, labels in re.findall(r"`([a-z_]+)(?:\{([a-z,]+)\})?`", series):
            assert name not in found, f"{name} is told twice"
            found[name] = kind, frozenset(filter(None, labels.split(",")))
    return found


EXPOSITIONS: Final = expositions()
DOCUMENTED: Final = documented()


def test_every_name_is_exposed_and_every_series_of_ours_has_a_name() -> None:
    exposed = {exposed_name(f) for each in EXPOSITIONS for f in each.families}
    assert {name for name in exposed if name.startswith("fastgen_")} == METRICS


def test_every_name_is_on_the_page_and_no_other() -> None:
    own = {name for name in DOCUMENTED if not name.startswith("process_")}
    assert own == METRICS


@pytest.mark.parametrize("exposition", EXPOSITIONS, ids=lambda each: each.pod)
def test_kind_and_labels_are_as_on_the_page(exposition: Exposition) -> None:
    always = set() if exposition.pod == "operator" else IDENTITY
    for family in exposition.families:
        name = exposed_name(family)
        if name.startswith("process_") and name not in DOCUMENTED:
            continue
        kind, labels = DOCUMENTED[name]
        assert family.type == kind, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == always | labels, name


@pytest.mark.parametrize("exposition", EXPOSITIONS, ids=lambda each: each.pod)
def test_no_label_has_values_without_end(exposition: Exposition) -> None:
    for family in exposition.families:
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert re.fullmatch(VALUES[label], value), (sample.name, label, value)


def test_every_value_that_is_listed_is_exposed_and_the_other_way_round() -> None:
    listed: dict[str, set[str]] = {
        "fastgen_requests_total": set(Outcome),
        "fastgen_slo_target_misses_total": set(Target),
        "fastgen_slo_target_seconds": set(Target),
        "fastgen_request_ends_total": {end.value for end in End},
        "fastgen_balancer_picks_total": {*Refusal, PICKED},
        "fastgen_balancer_ejections_total": {"slow", "failing"},
        "fastgen_arrived_engine_seconds_total": set(Phase),
        "fastgen_operator_watch_ends_total": set(Ending),
    }
    told = {}
    for series, _, meaning in tables("series", "kind", "meaning"):
        name = series.strip("`").partition("{")[0]
        told[name] = set(re.findall(r"`([a-z_]+)`", meaning))
    for name, values in listed.items():
        assert told[name] == values, name
    for exposition in EXPOSITIONS:
        for family in exposition.families:
            if (known := listed.get(exposed_name(family))) is None:
                continue
            (label,) = DOCUMENTED[exposed_name(family)][1] - {"kind"}
            assert {sample.labels[label] for sample in family.samples} <= known, family.name


def alerts() -> dict[str, dict[str, Any]]:
    """All that a deployment may have, and the operator's, by name."""
    settings = Settings(Images("r:1", "c:1"))
    owner, spec = Owner("chat", "team", "u"), Spec(Model("file:///models/a.gguf"))
    children = make_children(owner, spec, settings, served=("PrometheusRule",))
    (group,) = children[-1]["spec"]["groups"]
    rules = [*group["rules"], *operator_alerts.group()["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def test_every_alert_is_on_the_page_with_its_severity() -> None:
    told = {
        name.strip("`"): severity for name, _, severity in tables("alert", "fires when", "severity")
    }
    assert told == {name: rule["labels"]["severity"] for name, rule in alerts().items()}


def test_the_runbook_of_every_alert_is_a_section_of_the_page() -> None:
    sections = re.findall(r"^### (FastGen\w+)\n\n\S", PAGE, re.MULTILINE)
    in_the_table = [name.strip("`") for name, *_ in tables("alert", "fires when", "severity")]
    assert sections == in_the_table
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"{RUNBOOKS}#{name.lower()}"
    assert (REPOSITORY / RUNBOOKS).read_text() == PAGE


def test_links_lead_to_sections() -> None:
    links = re.findall(r"\]\(([a-z-]+\.md)?(?:#([a-z0-9-]+))?\)", PAGE)
    assert links
    for file, section in links:
        page = (REPOSITORY / "docs" / file).read_text() if file else PAGE
        heads = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        sections = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not section or section in sections, (file, section)


def test_the_panels_that_runbooks_name_exist() -> None:
    begin, end = PAGE.index("### FastGenErrorBudgetBurnsFast"), PAGE.index("## Dashboard")
    titles = {panel.title for row in dashboard.ROWS for panel in row.panels}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", PAGE[begin:end]))
    assert named
    assert named <= titles, named - titles


def test_the_operators_alerts_in_the_chart_are_those_of_their_source() -> None:
    assert operator_alerts.TARGET.read_text() == operator_alerts.text(), "run `make chart`"
    template = (REPOSITORY / "charts/fastgen/templates/monitoring.yaml").read_text()
    assert f'replace "{operator_alerts.JOB}" $job' in template
    for rule in json.loads(operator_alerts.text())["groups"][0]["rules"]:
        read = set(re.findall(r"\bfastgen_\w+", rule["expr"]))
        assert read
        assert read <= METRICS
