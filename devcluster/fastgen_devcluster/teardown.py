"""Takes the cluster down, whatever state it is in."""

import os
import shutil
from pathlib import Path

from fastgen_devcluster import control_groups, network
from fastgen_devcluster.command import succeeds
from fastgen_devcluster.process import Identity, Ledger, end, identify, in_network
from fastgen_devcluster.runtime_store import remove_containers
from fastgen_devcluster.settings import Settings

# Of the state only these outlive `down`: credentials, images and the logs to read afterwards.
KEPT = ("pki", "registry", "log", "admin.kubeconfig", "lock")


def take_down(settings: Settings) -> None:
    """End every process, then remove what they left: groups, mounts, network, state."""
    ledger = Ledger(settings.records)
    # With the kubelets gone nothing brings the pods back; the API's data is thrown away below.
    kept_alive = ("registry", *(node.process("containerd") for node in settings.nodes))
    ledger.stop([name for name in ledger.names() if name not in kept_alive], grace_seconds=0)
    _end_pods(settings)
    for node in settings.nodes:
        if ledger.find(node.process("containerd")):
            remove_containers(node)
    ledger.stop(ledger.names(), grace_seconds=5)
    # Whatever is still there has lost its record: to a crash of `up`, or to a deleted state.
    end(_in_networks(settings), grace_seconds=0)
    network.delete(settings)
    control_groups.delete(settings.prefix)
    for directory in _mounts_below(settings.state):
        succeeds("umount", "--lazy", directory)
    _remove_state(settings)


def leftovers(settings: Settings) -> list[str]:
    """What of the cluster is on this machine, in words; nothing after a complete `down`."""
    ledger = Ledger(settings.records)
    found = [f"process {name}" for name in ledger.names() if ledger.find(name)]
    pids = sorted(control_groups.processes(settings.prefix))
    found += [f"container process {pid}" for pid in pids]
    shims = _shims(settings)
    found += [f"shim process {shim.pid}" for shim in shims]
    known = {*shims, *(ledger.find(name) for name in ledger.names())}
    strays = [one for one in _in_networks(settings) if one not in known]
    found += [f"process {stray.pid} without a record" for stray in strays]
    found += [f"mount {directory}" for directory in _mounts_below(settings.state)]
    found += [f"namespace {netns.name}" for netns in network.namespaces(settings) if netns.exists()]
    interface = Path("/sys/class/net", settings.host_interface)
    found += [f"interface {interface.name}"] if interface.exists() else []
    groups = [hierarchy / settings.prefix for hierarchy in control_groups.hierarchies()]
    return found + [f"cgroup {group}" for group in groups if group.exists()]


def _in_networks(settings: Settings) -> list[Identity]:
    return [one for netns in network.namespaces(settings) for one in in_network(netns)]


def _end_pods(settings: Settings) -> None:
    containers = (identify(pid) for pid in control_groups.processes(settings.prefix))
    end([identity for identity in containers if identity], grace_seconds=0)
    # A shim reaps its container and reports it before it is ended itself.
    end(_shims(settings), grace_seconds=0)


def _shims(settings: Settings) -> list[Identity]:
    """The shims of our containerds, known by the sockets that they were given."""
    sockets = {os.fsencode(node.containerd_socket) for node in settings.nodes}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"containerd-shim" in words[0] and sockets & set(words):
            identity = identify(int(entry.name))
            found += [identity] if identity else []
    return found


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((path for path in mounts if path.startswith(f"{directory}/")), reverse=True)


def _remove_state(settings: Settings) -> None:
    if not settings.state.exists():
        return
    homes = {node.home for node in settings.nodes}
    for path in settings.state.iterdir():
        if path.name not in KEPT and path not in homes:
            _remove(path)
    for home in homes:
        # Images stay unpacked; the sockets and bundles of the dead do not.
        for path in (*home.glob("*"), home / "containerd" / "state", home / "containerd" / "sock"):
            if path != home / "containerd":
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
