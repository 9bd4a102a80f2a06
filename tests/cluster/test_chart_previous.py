"""From the operator of the release before to this tree's: what is served is not touched."""

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
PREVIOUS = "a06c271"
"""The commit that `previous/` was packaged from."""
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4}


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the release before."""
    words = ["git", "-C", str(REPOSITORY), "archive", PREVIOUS, "api", "operator"]
    done = subprocess.run(words, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"this clone does not hold {PREVIOUS}: {done.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def previous_operator(operator: OperatorProcess, rooms: Path) -> Iterator[None]:
    """Runs with the same rights and images as `operator` would."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "KUBECONFIG": str(operator.kubeconfig),
        "FASTGEN_RUNTIME_IMAGE": operator.images["runtime"],
        "FASTGEN_CONTROL_IMAGE": operator.images["control"],
        "FASTGEN_WATCH_NAMESPACES": operator.namespace,
        "FASTGEN_HTTP_PORT": str(operator.port),
        "PYTHONPATH": f"{rooms / 'api'}:{rooms / 'operator'}",
    }
    program = "from fastgen_operator.main import run; run()"
    with operator.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def running(operator: OperatorProcess) -> set[tuple[str, int]]:
    """Every pod by its identity, with how often its containers were restarted."""
    return {
        (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ())),
        )
        for pod in operator.get("pods")["items"]
    }


def test_an_upgrade_of_the_operator_restarts_no_pod(rooms: Path, tmp_path: Path) -> None:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in("fastgen-previous", tmp_path, images, 18094) as operator:
        with previous_operator(operator, rooms):
            operator.create("chat", resources=SMALL, engine=ENGINE)
            wait_until(
                "the release before serves it",
                lambda: operator.condition("chat", "Ready").get("status") == "True",
                seconds=180,
            )
        resource, before = operator.get("fgd", "chat"), running(operator)
        operator.start()
        wait_until("UpgradeAvailable", lambda: operator.condition("chat", "UpgradeAvailable"), 60)
        # The children are written before the status is: a rollout would have begun by now.
        wait_until("quiet", lambda: not operator.writes(time.time() - 10), seconds=60, pause=2)
        assert running(operator) == before
        assert operator.condition("chat", "Ready")["status"] == "True"
        after = operator.get("fgd", "chat")
        assert after["spec"] == resource["spec"]
        assert after["metadata"]["generation"] == resource["metadata"]["generation"]
        assert after["metadata"]["uid"] == resource["metadata"]["uid"]
