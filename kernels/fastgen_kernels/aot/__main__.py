"""Writes the budget's table: `python -m fastgen_kernels.aot kernels/BUDGET.md`.

With `--match decode` it compiles what has that in its name only, and leaves the other lines as they
are. Without a path it prints the lines. What is over a limit goes to standard error, and the exit
code is 1.
"""

import argparse
import os
import sys
from pathlib import Path

from fastgen_kernels.aot.budget import excesses, line, reports, table
from fastgen_kernels.aot.catalogue import catalogue


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--match", default="", help="only kernels whose key holds this")
    asked = parser.parse_args()
    keys = [key for key in catalogue() if asked.match in key]
    told = reports(keys, len(os.sched_getaffinity(0)))
    lines = [line(key, report) for key, report in told.items()]
    found = [sentence for key, report in told.items() for sentence in excesses(key, report)]
    if asked.path:
        before = asked.path.read_text() if asked.path.exists() else ""
        asked.path.write_text(table(lines, before))
    else:
        print("\n".join(lines))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
