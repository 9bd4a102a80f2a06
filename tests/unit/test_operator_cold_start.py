"""How long a replica takes to serve, as the status tells it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from observed_objects import LATER, NOW, OWNER, container, deployment, observed, pod

from fastgen_operator.cold_start import cold_start_seconds
from fastgen_operator.status import same_status, status_of

SCHEDULED = datetime(2025, 1, 1, tzinfo=UTC)


def replica(seconds: float | None, *, restarts: int = 0) -> Any:
    """A replica pod that was ready so long after it got a node; None: not yet."""
    since = {"PodScheduled": SCHEDULED}
    if seconds is not None:
        since["Ready"] = SCHEDULED + timedelta(seconds=seconds)
    found = pod(containerStatuses=[container(restartCount=restarts)])
    found["metadata"]["creationTimestamp"] = "2024-12-31T00:00:00Z"
    found["status"]["conditions"] = [
        {"type": kind, "status": "True", "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for kind, at in since.items()
    ]
    return found


@pytest.mark.parametrize(
    ("pods", "previous", "told"),
    [
        ([], None, None),
        ([replica(None)], None, None),
        ([replica(40)], None, 40),
        ([replica(0)], None, 1),
        ([replica(40), replica(30), replica(500)], None, 40),
        ([replica(None), replica(40)], None, 40),
        ([replica(9, restarts=1), replica(40)], None, 40),
        ([replica(601)], None, None),
        ([], 40, 40),
        ([replica(55)], 40, 40),
        ([replica(28)], 40, 40),
        ([replica(61)], 40, 61),
        ([replica(26)], 40, 26),
    ],
)
def test_the_median_of_fresh_starts_is_told_when_it_moved(
    pods: list[Any], previous: int | None, told: int | None
) -> None:
    assert cold_start_seconds(pods, 600, previous) == told


def test_the_status_tells_it_and_keeps_it() -> None:
    first = status_of(OWNER, observed(None, replica(40)), NOW, {})
    assert first["coldStartSeconds"] == 40
    idle = status_of(OWNER, observed(), LATER, first)
    assert idle["coldStartSeconds"] == 40
    assert same_status(status_of(OWNER, observed(None, replica(44)), LATER, first), first)
    slower = status_of(OWNER, observed(None, replica(90)), LATER, first)
    assert slower["coldStartSeconds"] == 90
    assert not same_status(slower, first)


def test_a_time_beyond_the_progress_deadline_is_no_cold_start() -> None:
    hasty = deployment("chat-replica", 2)
    hasty["spec"]["progressDeadlineSeconds"] = 30
    assert "coldStartSeconds" not in status_of(OWNER, observed(hasty, replica(40)), NOW, {})
