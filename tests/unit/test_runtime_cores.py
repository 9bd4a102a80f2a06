"""What a process may use: cgroup versions 1 and 2, alone, nested and in containers."""

from pathlib import Path

import pytest

from fastgen_runtime.engine import cores

UNLIMITED_V1 = "9223372036854771712\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cores_granted"),
    [("max 100000\n", None), ("60000 100000\n", 0.6), ("400000 100000", 4.0), ("50000", 0.5)],
)
def test_cpu_max(text: str, cores_granted: float | None) -> None:
    assert cores.parse_cpu_max(text) == cores_granted


@pytest.mark.parametrize(
    ("quota", "period", "cores_granted"), [("-1\n", "100000\n", None), ("150000", "100000", 1.5)]
)
def test_cfs_quota(quota: str, period: str, cores_granted: float | None) -> None:
    assert cores.parse_cfs_quota(quota, period) == cores_granted


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", None), (UNLIMITED_V1, None), ("1073741824\n", 1 << 30)]
)
def test_memory_limit(text: str, limit: int | None) -> None:
    assert cores.parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("quota", "num_cpus", "threads"),
    [(None, 8, 8), (0.6, 8, 1), (1.9, 8, 1), (2.0, 8, 2), (3.7, 8, 3), (16, 8, 8), (None, 0, 1)],
)
def test_threads(quota: float | None, num_cpus: int, threads: int) -> None:
    assert cores.threads_for(quota, num_cpus) == threads


def test_version_2_in_its_own_namespace(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "60000 100000\n",
            "sys/fs/cgroup/memory.max": "2147483648\n",
        },
    )
    assert cores.cpu_quota(root) == 0.6
    assert cores.memory_limit_bytes(root) == 2 << 30


def test_version_2_the_tightest_group_above_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/one\n",
            "sys/fs/cgroup/pods/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/pods/one/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pods/one/memory.max": "max\n",
            "sys/fs/cgroup/pods/memory.max": "1000000\n",
        },
    )
    assert cores.cpu_quota(root) == 2
    assert cores.memory_limit_bytes(root) == 1000000


def test_version_1_in_a_container_whose_path_is_not_mounted(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/kubepods/pod1/c\n4:memory:/kubepods/pod1/c\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "120000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
        },
    )
    assert cores.cpu_quota(root) == 1.2
    assert cores.memory_limit_bytes(root) == 512 << 20


def test_no_groups_no_limits(tmp_path: Path) -> None:
    assert cores.cpu_quota(tmp_path) is None
    assert cores.memory_limit_bytes(tmp_path) is None


def test_numbers_of_this_process_are_plausible() -> None:
    assert 1 << 20 < cores.resident_bytes() < cores.memory_available_bytes() + (1 << 40)
    assert cores.available_threads() >= 1


def test_cpu_flags() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\n"
    assert cores.parse_cpu_flags(text) == {"fpu", "avx2", "avx512_bf16"}
    assert cores.parse_cpu_flags("Features\t: asimd bf16\n") == {"asimd", "bf16"}
    assert cores.parse_cpu_flags("") == frozenset()


def test_threads_that_a_person_set_stay() -> None:
    environment = {"OMP_NUM_THREADS": "7"}
    cores.limit_threads(1, environment)
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["MKL_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("chosen", "ranks", "threads"),
    [("", 1, 6), ("", 4, 1), ("2", 1, 2), ("9", 2, 3), ("0", 1, 1), ("many", 1, 6)],
)
def test_threads_are_a_share_of_the_cores_or_what_was_chosen_below_it(
    monkeypatch: pytest.MonkeyPatch, chosen: str, ranks: int, threads: int
) -> None:
    monkeypatch.setattr(cores, "available_threads", lambda: 6)
    assert cores.chosen_threads(ranks, {"OMP_NUM_THREADS": chosen}) == threads
