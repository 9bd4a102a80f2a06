"""Gives the node a cgroup of its own in every hierarchy, and finds what runs in it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# All pods together weigh as much as so many busy processes of the host per core: with the one that
# is the default, a test suite beside the cluster would starve it.
WEIGHT_PER_CORE = 2


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The unified hierarchy, or every one of version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(path for path in root.iterdir() if (path / "cgroup.procs").exists())


def create(name: str) -> None:
    """Make the node's group; two kubelets in one group would end each other's pods."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        control = hierarchy / "cgroup.subtree_control"
        if hierarchy == ROOT:
            for controller in (hierarchy / "cgroup.controllers").read_text().split():
                _try_write(control, f"+{controller}")
        # Version 1 leaves these empty in a new group, and then nothing can enter it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            parent = hierarchy / setting
            if hierarchy != ROOT and parent.exists():
                (group / setting).write_text(parent.read_text())
        weight = WEIGHT_PER_CORE * (os.cpu_count() or 1)
        for setting, default in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (group / setting).exists():
                (group / setting).write_text(str(default * weight))


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
    """Everything that runs in the node's group: its containers."""
    found: set[int] = set()
    for group in _groups(name):
        try:
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
        except OSError:
            continue
    return found


def delete(name: str) -> None:
    """Remove the node's group once its last process has been reaped."""
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
