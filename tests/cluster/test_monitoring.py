"""The Prometheus operator's kinds, which come and go."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import wait_until
from commands import Commands
from operator_process import OperatorProcess
from operator_questions import delete
from promtool import monitoring_definitions

from fastgen_devcluster.command import CommandError
from fastgen_operator.monitoring import MONITORING_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture
def no_definitions(cluster: Commands) -> Iterator[None]:
    """The cluster knows no PodMonitor and no PrometheusRule, before and after."""
    names = [f"{kind.lower()}s.monitoring.coreos.com" for kind in MONITORING_KINDS]
    remove = ("delete", "crd", *names, "--ignore-not-found", "--wait")
    cluster.kubectl(*remove)
    yield
    cluster.kubectl(*remove)


def complaints(operator: OperatorProcess, since: int) -> list[str]:
    """Lines of the operator's log, from a size of it on, that a person should look at."""
    lines = operator.log.read_text()[since:].splitlines()
    return [line for line in lines if '"level": "warning"' in line or '"level": "error"' in line]


def test_kinds_of_the_prometheus_operator_are_used_while_they_are_there(
    cluster: Commands, operator: OperatorProcess, no_definitions: None
) -> None:
    operator.create("watched")

    def made() -> dict[str, Any]:
        try:
            found = operator.get("podmonitors,prometheusrules")["items"]
        except CommandError:
            return {}
        return {each["kind"]: each for each in found}

    wait_until("children", lambda: operator.find("deployment", "watched-replica"), seconds=30)
    start = operator.log.stat().st_size
    for definition in monitoring_definitions():
        cluster.kubectl("create", "-f", str(definition))
    children = wait_until(
        "monitor and rule", lambda: made() if len(made()) == 2 else None, seconds=90
    )
    for child in children.values():
        assert child["metadata"]["ownerReferences"][0]["name"] == "watched"
    assert children["PrometheusRule"]["spec"]["groups"][0]["name"].endswith("-watched")

    rule = ("prometheusrule", "watched")
    operator.kubectl("patch", *rule, "--type=merge", "-p", '{"spec": {"groups": []}}')
    wait_until("the rule again", lambda: operator.get(*rule)["spec"]["groups"], seconds=30)
    operator.kubectl("delete", *rule)
    wait_until("the rule anew", lambda: operator.find(*rule), seconds=30)

    for kind in MONITORING_KINDS:
        cluster.kubectl("delete", "crd", f"{kind.lower()}s.monitoring.coreos.com", "--wait")
    operator.patch("watched", {"slo": {"targetPercent": "97"}})
    wait_until(
        "the new SLO, without them",
        lambda: '"97"' in operator.get("configmap", "watched-slo")["data"]["slo.json"],
        seconds=30,
    )

    def is_quiet() -> bool:
        return not [text for text in operator.writes(time.time() - 5) if "monitoring" in text]

    wait_until("nobody asks for what is gone", is_quiet, seconds=60, pause=1)
    assert len(complaints(operator, start)) <= 2, complaints(operator, start)
    delete(operator, "watched")
