"""Takes the cluster down, whatever state it is in."""

import os
import shutil
from pathlib import Path

from fastgen_devcluster import control_groups, network
from fastgen_devcluster.command import succeeds
from fastgen_devcluster.process import Identity, Ledger, end, identify, in_network
from fastgen_devcluster.runtime_store import remove_containers
from fastgen_devcluster.settings import Node, Settings

# Of the state only these outlive `down`: credentials, images and the logs to read afterwards.
KEPT = ("pki", "registry", "log", "admin.kubeconfig", "containerd", "lock")


def take_down(settings: Settings, node: Node) -> None:
    """End every process, then remove what they left: groups, mounts, network, state."""
    ledger = Ledger(settings.records)
    # With the kubelet gone nothing brings the pods back; the API's data is thrown away below.
    kept_alive = ("containerd", "registry")
    ledger.stop([name for name in ledger.names() if name not in kept_alive], grace_seconds=0)
    _end_pods(settings, node)
    if ledger.find("containerd"):
        remove_containers(settings)
    ledger.stop(ledger.names(), grace_seconds=5)
    # Whatever is still there has lost its record: to a crash of `up`, or to a deleted state.
    end(in_network(node.netns), grace_seconds=0)
    network.delete(settings, node)
    control_groups.delete(node.name)
    for directory in _mounts_below(settings.state):
        succeeds("umount", "--lazy", directory)
    _remove_state(settings)


def leftovers(settings: Settings, node: Node) -> list[str]:
    """What of the cluster is on this machine, in words; nothing after a complete `down`."""
    ledger = Ledger(settings.records)
    found = [f"process {name}" for name in ledger.names() if ledger.find(name)]
    found += [f"container process {pid}" for pid in sorted(control_groups.processes(node.name))]
    shims = _shims(settings)
    found += [f"shim process {shim.pid}" for shim in shims]
    known = {*shims, *(ledger.find(name) for name in ledger.names())}
    strays = [one for one in in_network(node.netns) if one not in known]
    found += [f"process {stray.pid} without a record" for stray in strays]
    found += [f"mount {directory}" for directory in _mounts_below(settings.state)]
    found += [f"namespace {node.name}"] if node.netns.exists() else []
    interface = Path("/sys/class/net", settings.host_interface)
    found += [f"interface {interface.name}"] if interface.exists() else []
    groups = [hierarchy / node.name for hierarchy in control_groups.hierarchies()]
    return found + [f"cgroup {group}" for group in groups if group.exists()]


def _end_pods(settings: Settings, node: Node) -> None:
    containers = (identify(pid) for pid in control_groups.processes(node.name))
    end([identity for identity in containers if identity], grace_seconds=0)
    # A shim reaps its container and reports it before it is ended itself.
    end(_shims(settings), grace_seconds=0)


def _shims(settings: Settings) -> list[Identity]:
    """The shims of our containerd, known by the socket that they were given."""
    socket = os.fsencode(settings.containerd_socket)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"containerd-shim" in words[0] and socket in words:
            identity = identify(int(entry.name))
            found += [identity] if identity else []
    return found


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((path for path in mounts if path.startswith(f"{directory}/")), reverse=True)


def _remove_state(settings: Settings) -> None:
    if not settings.state.exists():
        return
    for path in settings.state.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # Images stay unpacked; the sockets and bundles of the dead do not.
    shutil.rmtree(settings.state / "containerd" / "state", ignore_errors=True)
    settings.containerd_socket.unlink(missing_ok=True)
