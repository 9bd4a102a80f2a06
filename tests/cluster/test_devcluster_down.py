"""A second cluster beside the shared one: it survives crashes and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fastgen_devcluster.command import run
from fastgen_devcluster.network import inside, namespaces
from fastgen_devcluster.packages import require_root
from fastgen_devcluster.process import Ledger, in_network
from fastgen_devcluster.settings import Settings
from fastgen_devcluster.teardown import leftovers

pytestmark = pytest.mark.cluster


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
    if leftovers(settings):
        devcluster(settings, "down")


def kill(settings: Settings, *names: str) -> None:
    ledger = Ledger(settings.records)
    for name in names or ledger.names():
        identity = ledger.find(name)
        assert identity is not None
        os.kill(identity.pid, signal.SIGKILL)


def routes(settings: Settings) -> int:
    """How many of the nodes the host knows the way to."""
    shown = run("ip", "route", "show")
    return sum(node.pod_cidr in shown for node in settings.nodes)


def traces(settings: Settings) -> dict[str, set[str]]:
    """What on this machine bears the cluster's name, its state's path or its addresses."""
    names = {settings.switch, *(node.name for node in settings.nodes)}
    marks = {*names, settings.host_interface, settings.host_address, str(settings.state)}
    cidrs = (settings.service_cidr, *(node.pod_cidr for node in settings.nodes))
    marks |= {cidr.rpartition(".")[0] for cidr in cidrs}

    def ours(lines: Iterable[str]) -> set[str]:
        return {line for line in lines if any(mark in line for mark in marks)}

    groups = Path("/sys/fs/cgroup").rglob(f"{settings.prefix}*")
    found = [one for netns in namespaces(settings) for one in in_network(netns)]
    return {
        "processes": {str(one.pid) for one in found} | ours(command_lines()),
        "mounts": ours(Path("/proc/self/mountinfo").read_text().splitlines()),
        "namespaces": ours(run("ip", "netns", "list").splitlines()),
        "interfaces": ours(run("ip", "-oneline", "link", "show").splitlines()),
        "cgroups": {str(group) for group in groups if group.is_dir()},
        "routes": ours(run("ip", "route", "show", "table", "all").splitlines()),
    }


def remaining(settings: Settings) -> dict[str, set[str]]:
    """The kinds of traces of which there is one."""
    return {kind: found for kind, found in traces(settings).items() if found}


def command_lines() -> Iterator[str]:
    """The words of every process but this one and those above it, which name the state too."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
            with suppress(OSError):
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def rules() -> list[str]:
    """The host's packet filter without its counters and dates."""
    saved = run("iptables-save").splitlines()
    return [line.partition(" [")[0] for line in saved if not line.startswith("#")]


def test_down_leaves_nothing(settings: Settings) -> None:
    rules_before = rules()
    assert remaining(settings) == {}
    devcluster(settings, "up")
    assert remaining(settings).keys() == traces(settings).keys()
    # As after an interruption: it runs in the cluster's network, and no record tells of it.
    strays = [subprocess.Popen(inside(netns, "sleep", "600")) for netns in namespaces(settings)]
    devcluster(settings, "down")
    assert [stray.wait(timeout=5) for stray in strays] == [-signal.SIGKILL] * len(strays)
    assert remaining(settings) == {}
    assert rules() == rules_before


@pytest.mark.slow
def test_down_leaves_nothing_even_after_crashes(settings: Settings) -> None:
    devcluster(settings, "up")
    assert routes(settings) == len(settings.nodes)
    kill(settings, "kube-apiserver", "kubelet-0", "kube-router-1")
    devcluster(settings, "up")
    kill(settings, "containerd-1")
    devcluster(settings, "up")
    kill(settings)
    assert leftovers(settings), "the pods of a crashed cluster live on"
    devcluster(settings, "up")
    kill(settings, "containerd-0", "containerd-1", "etcd")
    devcluster(settings, "down")
    assert leftovers(settings) == []
    assert routes(settings) == 0
    devcluster(settings, "down")
