"""What kernels take of a GPU, compiled ahead of time: `kernels/BUDGET.md` tells it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastgen_kernels.aot.catalogue import catalogue

BUDGET = Path(__file__).resolve().parents[2] / "kernels/BUDGET.md"
ADVICE = "run `python -m fastgen_kernels.aot kernels/BUDGET.md`"


def compiled(which: str) -> list[str]:
    """Lines of the table, of a process that does not interpret; no entry is over a limit."""
    done = subprocess.run(
        [sys.executable, "-m", "fastgen_kernels.aot", "--lines", which],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_common_kernels_take_what_the_table_says() -> None:
    told = BUDGET.read_text().splitlines()
    missing = [line for line in compiled("common") if line not in told]
    assert not missing, ADVICE


@pytest.mark.slow
def test_all_kernels_take_what_the_table_says() -> None:
    told = [line for line in BUDGET.read_text().splitlines() if "| sm_" in line]
    assert compiled("all") == told, ADVICE


def test_table_lists_every_entry() -> None:
    listed = [
        " ".join(part.strip() for part in line.split("|")[1:3])
        for line in BUDGET.read_text().splitlines()
        if "| sm_" in line
    ]
    assert listed == list(catalogue()), ADVICE
