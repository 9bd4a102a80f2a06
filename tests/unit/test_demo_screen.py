"""What the demo reads from the resource and shows of it."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fastgen_cli.summary import summarize
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.demo import farewell, picture
from fastgen_devcluster.demo.deployment import condition_changes, read_state
from fastgen_devcluster.demo.narration import Narrator

REPOSITORY = Path(__file__).resolve().parents[2]


def resource(ready: str = "True", replicas: int = 1, **status: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples/smollm2-cpu.yaml").read_text())
    found["metadata"]["generation"] = 3
    found["spec"]["replicas"] = replicas
    condition = {"type": "Ready", "status": ready, "reason": "Why", "message": "the [b] words"}
    found["status"] = {
        "observedGeneration": 3,
        "replicas": replicas,
        "readyReplicas": replicas,
        "conditions": [condition],
        **status,
    }
    return found


DECISION = {
    "time": "2026-01-01T00:00:00Z",
    "replicas": 2,
    "rule": "DemandAboveCapacity",
    "message": "12 tokens/s [of 10]",
    "blockers": ["MaxReplicas"],
}


def moment(**status: Any) -> picture.Moment:
    state = read_state(resource(**status))
    return picture.Moment(
        at_seconds=12.0,
        phase="one replica",
        rate=2.5,
        in_flight=4,
        window=summarize([], 10, state.spec.slo),
        state=state,
        timeline="11122",
    )


def test_a_resource_without_status_is_read() -> None:
    found = resource()
    del found["status"]
    state = read_state(found)
    assert (state.replicas, state.ready_replicas, state.conditions) == (0, 0, ())
    assert not state.is_settled(1)


def test_settled_means_ready_under_the_current_spec() -> None:
    assert read_state(resource()).is_settled(1)
    assert not read_state(resource()).is_settled(2)
    assert not read_state(resource(ready="False")).is_settled(1)
    assert not read_state(resource(observedGeneration=2)).is_settled(1)
    assert not read_state(resource(readyReplicas=0)).is_settled(1)


def test_only_changed_conditions_are_told() -> None:
    first, second = read_state(resource(ready="False")), read_state(resource())
    assert condition_changes(None, first) == ["Ready=False Why: the [b] words"]
    assert condition_changes(first, first) == []
    assert condition_changes(first, second) == ["Ready=True Why: the [b] words"]


def test_the_timeline_fills_the_slots_between_looks() -> None:
    assert picture.timeline([], 5) == ""
    assert picture.timeline([(0.1, 1), (1, 1), (12, 2), (20, 2)], 5) == "11222"
    assert len(picture.timeline([(float(at), 1) for at in range(1000)], 5, width=60)) == 60


def test_the_table_shows_latencies_against_the_slo_and_the_decision() -> None:
    screen = io.StringIO()
    Console(file=screen, width=160).print(picture.table(moment(lastDecision=DECISION)))
    shown = screen.getvalue()
    assert "target 2 s + 10 ms per prompt token" in shown
    assert "target 300 ms" in shown
    assert "SLO 95 %" in shown
    assert "2 (DemandAboveCapacity) 12 tokens/s [of 10] [held back by: MaxReplicas]" in shown
    assert "11122" in shown


def test_a_log_line_holds_the_same() -> None:
    line = picture.line(moment(lastDecision=DECISION))
    assert "replicas 1/1 | DemandAboveCapacity -> 2" in line
    assert "\n" not in line
    assert "none" not in picture.line(moment()).lower()


def test_a_quiet_log_line_is_short() -> None:
    quiet = replace(moment(lastDecision=DECISION), rate=0.0, phase="no load")
    assert picture.line(quiet) == "  12 s no load: replicas 1/1 | DemandAboveCapacity -> 2"


def test_stages_are_numbered_and_timed() -> None:
    screen = io.StringIO()
    narrator = Narrator(Console(file=screen, width=100), stages=2)
    with narrator.stage("Build", "because"):
        narrator.say("working")
    assert re.search(r"1/2  Build\n +because\n +working\n +done in \d", screen.getvalue())


def make_cluster(is_own: bool) -> Cluster:
    return Cluster(
        kubeconfig=Path("/k/config"),
        registry="r",
        kubectl=Path("/bin/kubectl"),
        helm=Path("/bin/helm"),
        prometheus_url=None,
        host_address=None,
        audit_log=None,
        is_own=is_own,
    )


def test_the_next_commands_can_be_typed_as_they_stand() -> None:
    ours = farewell.next_commands(make_cluster(False), "http://10.0.0.1", "m")
    assert len(ours) == 3
    assert "chat --url http://10.0.0.1" in ours[0][1]
    assert ours[1][1].startswith("KUBECONFIG=/k/config ")
    assert "fastgen explain m" in ours[1][1]
    assert "-m fastgen_devcluster kubectl patch fgd m" in ours[2][1]
    theirs = farewell.next_commands(make_cluster(True), "http://127.0.0.1:1", "m")
    assert all("KUBECONFIG=/k/config " in text for _, text in theirs)
