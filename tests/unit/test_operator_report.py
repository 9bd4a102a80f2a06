"""What the report of a failed cluster test says of its operator's namespace."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from operator_report import NUM_EVENTS, noted, sections

RESOURCE = {
    "metadata": {"name": "chat", "generation": 3},
    "status": {
        "observedGeneration": 2,
        "conditions": [{"type": "Ready", "status": "False", "reason": "Loading", "message": "1/2"}],
    },
}
ENVIRONMENT = [{"name": "HF_TOKEN", "value": "hf_secret"}]
POD = {
    "metadata": {"name": "chat-1", "creationTimestamp": "10:00"},
    "spec": {"nodeName": "one", "containers": [{"name": "runtime", "env": ENVIRONMENT}]},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "runtime",
                "ready": False,
                "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"reason": "Error", "exitCode": 1}},
            },
            {"name": "side", "ready": True, "restartCount": 0, "state": {"running": {}}},
        ],
    },
}


def event(number: int) -> Any:
    return {
        "metadata": {"creationTimestamp": f"{number:03}"},
        "type": "Normal",
        "reason": f"R{number}",
        "involvedObject": {"kind": "Pod", "name": "chat-1"},
        "message": "m",
    }


@dataclass
class Scene:
    """A namespace as kubectl tells it; what is not in `items` cannot be had."""

    log: Path
    items: dict[str, list[Any]]
    namespace: str = "models"

    def kubectl(self, *words: str) -> str:
        if words[0] == "logs":
            return f"said by {' '.join(words[1:-2])}"
        return json.dumps({"items": self.items[words[1]]})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    log = tmp_path / "operator.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    events = [event(number) for number in reversed(range(100))]
    return Scene(log, {"fgd": [RESOURCE], "pods": [POD], "events": events})


def test_it_tells_states_restarts_events_and_logs_and_no_environment(scene: Scene) -> None:
    told = {title.removesuffix(" of models"): text for title, text in sections(scene)}
    assert told["FastGenDeployments"].splitlines() == [
        "chat: generation 3, observed 2",
        "  Ready=False Loading since None: 1/2",
    ]
    assert told["pods"].splitlines() == [
        "chat-1: Running on one since 10:00",
        "  runtime: ready=False, 2 restarts; is waiting CrashLoopBackOff; was terminated Error 1",
        "  side: ready=True, 0 restarts; is running",
    ]
    events = told["events"].splitlines()
    assert len(events) == NUM_EVENTS
    assert events[-1] == "099 Normal R99 Pod/chat-1: m (x1)"
    assert told["operator's log"].splitlines()[-1] == "line 99"
    assert told["logs of pods that are not ready"].splitlines() == [
        "chat-1 -c=runtime:",
        "said by chat-1 -c=runtime",
        "chat-1 -c=runtime --previous:",
        "said by chat-1 -c=runtime --previous",
    ]
    assert "hf_secret" not in str(told)


def test_what_it_cannot_have_masks_neither_the_rest_nor_the_failure(scene: Scene) -> None:
    del scene.items["pods"]
    scene.log.unlink()
    with pytest.raises(pytest.fail.Exception) as failed, noted(scene):
        pytest.fail("not within 5 s")
    assert failed.value.msg == "not within 5 s"
    notes = "\n".join(failed.value.__notes__)
    assert "chat: generation 3" in notes
    assert "--- pods of models ---\nnot known: KeyError: 'pods'" in notes
    assert "not known: FileNotFoundError" in notes
