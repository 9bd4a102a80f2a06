"""Memory and CPU time of a process and all below it, from /proc."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PERIOD_SECONDS = 0.1


class Peak:
    """The most that was seen."""

    bytes: int = 0


def parse_children(parents: dict[int, int], root: int) -> set[int]:
    """The process and all below it. parents: of every process."""
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree


def parse_stat(text: str) -> tuple[int, int]:
    """Parent and CPU ticks of `/proc/PID/stat`; of children that were waited for, too."""
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15])


def parse_pss(text: str) -> int:
    """Bytes of the line Pss of `/proc/PID/smaps_rollup`."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def parse_busy(text: str) -> int:
    """Ticks that `/proc/stat`'s first line says were spent on work; guests' are in user's."""
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, text.split()[1:9])
    return user + nice + system + irq + soft + steal


def tree_of(root: int) -> dict[int, int]:
    """CPU ticks of the process and each one below it."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = parse_stat(path.read_text())
        except (OSError, IndexError):
            continue  # it has ended
    parents = {pid: parent for pid, (parent, _) in stats.items()}
    return {pid: stats[pid][1] for pid in parse_children(parents, root) if pid in stats}


def pss_of_tree(root: int) -> int:
    """Proportional set size of the process and all below it, in bytes."""
    total = 0
    for pid in tree_of(root):
        try:
            total += parse_pss(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:
            continue
    return total


def busy_seconds() -> float:
    """CPU time that this machine has worked."""
    return parse_busy(Path("/proc/stat").read_text().splitlines()[0]) / TICKS


def seconds_of_tree(root: int) -> float:
    """CPU time of the process, those below it, and what they waited for."""
    return sum(tree_of(root).values()) / TICKS


@contextmanager
def peak_of_tree(root: int) -> Iterator[Peak]:
    """Looks at the tree's memory until the end; what is timed should not run meanwhile."""
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            peak.bytes = max(peak.bytes, pss_of_tree(root))
            stop.wait(PERIOD_SECONDS)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()
        peak.bytes = max(peak.bytes, pss_of_tree(root))
