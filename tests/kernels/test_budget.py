"""What kernels take of a GPU, compiled ahead of time: `kernels/BUDGET.md` tells it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastgen_kernels.aot.budget import HEAD, key_of, table
from fastgen_kernels.aot.catalogue import catalogue

BUDGET = Path(__file__).resolve().parents[2] / "kernels/BUDGET.md"
ADVICE = "run `python -m fastgen_kernels.aot kernels/BUDGET.md`"


def compiled(which: str, seconds: float = 540) -> list[str]:
    """Lines of the table, of a process that does not interpret; no entry is over a limit."""
    done = subprocess.run(
        [sys.executable, "-m", "fastgen_kernels.aot", "--lines", which],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_common_kernels_take_what_the_table_says() -> None:
    told = BUDGET.read_text().splitlines()
    missing = [line for line in compiled("common") if line not in told]
    assert not missing, ADVICE


@pytest.mark.slow
@pytest.mark.timeout(3600)  # five hundred kernels, on as many processors as there are
def test_all_kernels_take_what_the_table_says() -> None:
    told = [line for line in BUDGET.read_text().splitlines() if "| sm_" in line]
    assert compiled("all", 3500) == told, ADVICE


def test_table_lists_every_entry() -> None:
    lines = [line for line in BUDGET.read_text().splitlines() if "| sm_" in line]
    assert [key_of(line) for line in lines] == list(catalogue()), ADVICE
    assert table(lines) == BUDGET.read_text(), ADVICE


def test_a_part_of_the_table_can_be_written() -> None:
    """Other lines stay, in the catalogue's order; those of entries that are gone do not."""
    keys = list(catalogue())[:3]
    first, second, third = (f"| {key.replace(' sm_', ' | sm_')} | 4 |" for key in keys)
    gone = "| softmax of yore | sm_80 | 4 |"
    assert table([second], table([third, gone, first])) == f"{HEAD}{first}\n{second}\n{third}\n"
    changed = third.replace("4 |", "8 |")
    assert table([changed], table([first, third])) == f"{HEAD}{first}\n{changed}\n"
