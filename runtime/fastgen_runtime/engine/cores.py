"""What this process may use of the machine: CPU quota and memory limit of its control group.

Pure parsers of the kernel's files, and thin readers. No torch: thread counts are read by OpenMP
when torch is imported, so they have to be set before.
"""

import ctypes
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Final

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_UNLIMITED_BYTES: Final = 1 << 60
"""Version 1 says "no limit" by a number near 2^63."""


def parse_cpu_max(text: str) -> float | None:
    """Cores of cgroup v2's `cpu.max` ("60000 100000"); None: no quota."""
    quota, _, period = text.strip().partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """Cores of cgroup v1's `cpu.cfs_quota_us` and `cpu.cfs_period_us`; None: no quota."""
    return int(quota) / int(period) if int(quota) > 0 else None


def parse_memory_limit(text: str) -> int | None:
    """Bytes of `memory.max` (v2) or `memory.limit_in_bytes` (v1); None: no limit."""
    value = text.strip()
    return None if value == "max" or int(value) >= _UNLIMITED_BYTES else int(value)


def parse_own_groups(text: str) -> dict[str, str]:
    """Path of each controller's group from `/proc/self/cgroup`; the key "" is version 2's."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def parse_memory_available(text: str) -> int:
    """Bytes of MemAvailable in `/proc/meminfo`."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def parse_cpu_flags(text: str) -> frozenset[str]:
    """Features in `/proc/cpuinfo`, empty where it lists none."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def threads_for(quota: float | None, num_cpus: int) -> int:
    """Threads that compute. Below two cores' quota a second thread spins away the first one's."""
    if quota is None:
        return max(1, num_cpus)
    return max(1, min(num_cpus, math.floor(quota))) if quota >= 2 else 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores that the control group, or one above it, grants; None: no quota."""
    quotas = [
        quota
        for directory in _directories(root, "cpu")
        if (quota := _quota_in(directory)) is not None
    ]
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Memory limit of the control group, or of one above it; None: no limit."""
    limits = []
    for directory in _directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name)
            if text is not None and (limit := parse_memory_limit(text)) is not None:
                limits.append(limit)
    return min(limits, default=None)


def memory_available_bytes(root: Path = Path("/")) -> int:
    """What the machine could give to programs without swapping."""
    return parse_memory_available((root / "proc/meminfo").read_text())


def resident_bytes(root: Path = Path("/")) -> int:
    """Memory that this process holds for itself; pages of mapped files can be dropped."""
    fields = (root / "proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def give_back_memory() -> None:
    """Returns what was freed to the system: the C library keeps holes between what is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's own
        trim(0)


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Features of the CPU."""
    return parse_cpu_flags(_read(root / "proc/cpuinfo") or "")


def available_threads(root: Path = Path("/")) -> int:
    """Threads that suit this process's CPU quota and affinity."""
    return threads_for(cpu_quota(root), len(os.sched_getaffinity(0)))


def chosen_threads(ranks: int, environment: Mapping[str, str] = os.environ) -> int:
    """Threads of each rank that shares the cores; fewer where OMP_NUM_THREADS says so."""
    share = max(1, available_threads() // ranks)
    chosen = environment.get(_THREAD_VARIABLES[0], "")
    return max(1, min(share, int(chosen))) if chosen.isdecimal() else share


def limit_threads(count: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the OpenMP variables that nobody set; to be called before torch is imported."""
    for name in _THREAD_VARIABLES:
        environment.setdefault(name, str(count))
    # Threads that wait by spinning take the cores from the ones that compute.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _directories(root: Path, controller: str) -> Iterator[Path]:
    """The own group's directory in each hierarchy, then those above it."""
    groups: Mapping[str, str] = parse_own_groups(_read(root / "proc/self/cgroup") or "")
    mounts = root / "sys/fs/cgroup"
    for key, mount in (("", mounts), ("", mounts / "unified"), (controller, mounts / controller)):
        if key not in groups:
            continue
        # In a container the path may lie outside the mount, whose root is then our own group.
        path = PurePosixPath(groups[key].lstrip("/"))
        for part in (path, *path.parents):
            yield mount / part


def _quota_in(directory: Path) -> float | None:
    if text := _read(directory / "cpu.max"):
        return parse_cpu_max(text)
    quota, period = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
    return parse_cfs_quota(quota, period) if quota and period else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
