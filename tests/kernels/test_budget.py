"""What kernels take of a GPU, compiled ahead of time: `kernels/BUDGET.md` tells it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

from fastgen_kernels.aot.budget import HEAD, excesses, key_of, line, report_of, table
from fastgen_kernels.aot.catalogue import catalogue
from fastgen_kernels.aot.compilation import Report

BUDGET: Final = Path(__file__).resolve().parents[2] / "kernels/BUDGET.md"
LINES: Final = [line for line in BUDGET.read_text().splitlines() if "| sm_" in line]
ADVICE: Final = "run `python -m fastgen_kernels.aot kernels/BUDGET.md`"
ENTRIES: Final = [
    pytest.param(key, marks=() if entry.common else pytest.mark.slow)
    for key, entry in catalogue().items()
]
Compiling = Mapping[str, Future[Report]]


@pytest.fixture(scope="module")
def compiling(request: pytest.FixtureRequest) -> Iterator[Compiling]:
    """The entries of the tests that run, side by side, in processes that do not interpret."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    keys = [test.callspec.params["key"] for test in tests if "compiling" in test.fixturenames]
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))
    try:
        yield {key: pool.submit(report_of, key) for key in keys}
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("key", ENTRIES)
def test_a_kernel_takes_what_the_table_says(key: str, compiling: Compiling) -> None:
    """And nothing over a limit; `-k "decode and sm_90"` compiles so many of them."""
    report = compiling[key].result()
    assert excesses(key, report) == []
    assert line(key, report) in LINES, ADVICE


def test_the_command_compiles_a_part() -> None:
    wanted = "logprobs fp16"
    done = subprocess.run(
        [sys.executable, "-m", "fastgen_kernels.aot", "--match", wanted],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line for line in LINES if wanted in line]


def test_table_lists_every_entry() -> None:
    assert [key_of(line) for line in LINES] == list(catalogue()), ADVICE
    assert table(LINES) == BUDGET.read_text(), ADVICE


def test_a_part_of_the_table_can_be_written() -> None:
    """Other lines stay, in the catalogue's order; those of entries that are gone do not."""
    keys = list(catalogue())[:3]
    first, second, third = (f"| {key.replace(' sm_', ' | sm_')} | 4 |" for key in keys)
    gone = "| softmax of yore | sm_80 | 4 |"
    assert table([second], table([third, gone, first])) == f"{HEAD}{first}\n{second}\n{third}\n"
    changed = third.replace("4 |", "8 |")
    assert table([changed], table([first, third])) == f"{HEAD}{first}\n{changed}\n"
