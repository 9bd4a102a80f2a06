"""The simulator is held against the real cluster: one window of a trace, replayed twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BOUND_SECONDS = 1680

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(BOUND_SECONDS + 60)]


def test_a_simulation_agrees_with_two_replays_of_the_same_requests(tmp_path: Path) -> None:
    program = REPOSITORY / "benchmarks" / "replay.py"
    done = subprocess.run(
        [sys.executable, str(program), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )
    # Shown where it fails.
    print(done.stdout, done.stderr[-4000:])
    assert done.returncode == 0
    found = json.loads((tmp_path / "replay.json").read_text())
    first, second, simulated = (one["run"] for one in found["runs"].values())
    assert first["requests"] == second["requests"] == simulated["requests"] >= 100
    assert max(found["latest_seconds"]) < 1.0, "the load came late: nothing can be told"
    verdict = found["verdict"]
    assert verdict["error"] <= verdict["tolerance"], (first, second, simulated)
    assert all(each["most"] <= 1 for each in verdict["distances"]), verdict["distances"]
    assert max(moment["wanted"] for moment in first["timeline"]) > 1, "nothing was scaled"
