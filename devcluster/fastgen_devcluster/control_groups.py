"""Gives the nodes cgroups of their own in every hierarchy, and finds what runs in them."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# The pods of all nodes together weigh as much as so many busy processes of the host per core: with
# the one that is the default, a test suite beside the cluster would starve it.
WEIGHT_PER_CORE = 2


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The unified hierarchy, or every one of version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(path for path in root.iterdir() if (path / "cgroup.procs").exists())


def create(cluster: str, nodes: Iterable[str]) -> None:
    """Make the cluster's group, and in it one per node.

    Two kubelets in one group would end each other's pods.
    """
    weight = WEIGHT_PER_CORE * (os.cpu_count() or 1)
    for hierarchy in hierarchies():
        if hierarchy == ROOT:
            _pass_controllers_on(hierarchy)
        _make(hierarchy / cluster)
        for setting, default in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (hierarchy / cluster / setting).exists():
                (hierarchy / cluster / setting).write_text(str(default * weight))
        for node in nodes:
            if hierarchy == ROOT:
                _pass_controllers_on(hierarchy / cluster)
            _make(hierarchy / node)


def _make(group: Path) -> None:
    group.mkdir(exist_ok=True)
    # Version 1 leaves these empty in a new group, and then nothing can enter it.
    for setting in ("cpuset.cpus", "cpuset.mems"):
        above = group.parent / setting
        if above.exists() and not (group / "cgroup.controllers").exists():
            (group / setting).write_text(above.read_text())


def _pass_controllers_on(group: Path) -> None:
    """The unified hierarchy gives groups below only what the one above hands down."""
    for controller in (group / "cgroup.controllers").read_text().split():
        _try_write(group / "cgroup.subtree_control", f"+{controller}")


def _try_write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        return


def _groups(name: str) -> Iterator[Path]:
    # Children come before their parents, in the order in which they can be removed.
    for hierarchy in hierarchies():
        group = hierarchy / name
        if group.exists():
            below = [path for path in group.rglob("*") if path.is_dir()]
            yield from sorted(below, key=lambda path: len(path.parts), reverse=True)
            yield group


def processes(name: str) -> set[int]:
    """Everything that runs in a group and below it: containers."""
    found: set[int] = set()
    for group in _groups(name):
        try:
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
        except OSError:
            continue
    return found


def delete(name: str) -> None:
    """Remove a group with all below it once its last process has been reaped."""
    deadline = time.monotonic() + 5
    while True:
        for group in _groups(name):
            try:
                group.rmdir()
            except OSError:
                continue
        if next(_groups(name), None) is None or time.monotonic() > deadline:
            return
        time.sleep(0.05)
