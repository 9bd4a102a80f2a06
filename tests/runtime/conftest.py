"""One replica for all tests that leave it as they found it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_process import ReplicaProcess, running_replica


@pytest.fixture(scope="session")
def shared_replica(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaProcess]:
    with running_replica(
        smollm2_path,
        tmp_path_factory.mktemp("replica"),
        "--max-model-length=1024",
        "--kv-block-size=16",
        "--max-concurrent-requests=24",
        "--token-budget=64",
    ) as replica:
        yield replica


@pytest.fixture
def replica(shared_replica: ReplicaProcess) -> Iterator[ReplicaProcess]:
    """The shared replica, idle before and after."""
    wait_until_idle(shared_replica)
    yield shared_replica
    wait_until_idle(shared_replica)


def wait_until_idle(replica: ReplicaProcess) -> None:
    """Fails when blocks stay taken."""
    deadline = time.monotonic() + 10
    while not replica.is_idle():
        assert time.monotonic() < deadline, replica.load()
        time.sleep(0.02)
