"""A second cluster beside the shared one: it survives crashes and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastgen_devcluster.command import run
from fastgen_devcluster.packages import require_root
from fastgen_devcluster.process import Ledger
from fastgen_devcluster.settings import Settings
from fastgen_devcluster.teardown import leftovers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def devcluster(settings: Settings, verb: str) -> None:
    environment = {
        "FASTGEN_STATE": str(settings.state),
        "FASTGEN_DEVCLUSTER_INDEX": str(settings.index),
    }
    kept = {key: value for key, value in os.environ.items() if key != "FASTGEN_KUBECONFIG"}
    command = [sys.executable, "-m", "fastgen_devcluster", verb]
    subprocess.run(command, env={**kept, **environment}, check=True, timeout=300)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    require_root()
    cache = Settings.from_environment().cache
    settings = Settings(state=tmp_path / "state", cache=cache, index=7)
    yield settings
    devcluster(settings, "down")


def kill(settings: Settings, *names: str) -> None:
    ledger = Ledger(settings.records)
    for name in names or ledger.names():
        identity = ledger.find(name)
        assert identity is not None
        os.kill(identity.pid, signal.SIGKILL)


def has_routes(settings: Settings) -> bool:
    return settings.pod_cidr in run("ip", "route", "show")


def test_down_leaves_nothing_even_after_crashes(settings: Settings) -> None:
    node = settings.node()
    devcluster(settings, "up")
    assert has_routes(settings)
    kill(settings, "kube-apiserver", "kubelet")
    devcluster(settings, "up")
    kill(settings, "containerd")
    devcluster(settings, "up")
    kill(settings)
    assert leftovers(settings, node), "the pods of a crashed cluster live on"
    devcluster(settings, "up")
    kill(settings, "containerd", "etcd")
    devcluster(settings, "down")
    assert leftovers(settings, node) == []
    assert not has_routes(settings)
    devcluster(settings, "down")
