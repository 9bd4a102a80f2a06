"""The balancer under load, with compiled fake replicas and clients, beside a direct connection.

One pod's real Envoy and picker on this machine. Sections: `streams` (2,000 streams at once),
`added` (what it adds to the time to first token), `tokens` (the picker's CPU time by the length of
answers), `picks` (requests per second of one core), `replicas` (throughput by their number),
`turns` (multi-turn chats against Envoy's own policies). Prints a table; writes JSON and a picture.

    .venv/bin/python benchmarks/load.py [SECTION ...] [--quick]
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import load_plots
from load_figures import Figure, table
from load_processes import available_cores
from load_program import ensure_program
from load_sections import SECTIONS, Found, Plan
from load_turns import turns

ALL = SECTIONS | {"turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"default: {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="short; shows that it works")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    arguments = parser.parse_args()
    chosen = arguments.sections or list(ALL)
    if unknown := set(chosen) - set(ALL):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    found: dict[str, Found] = {}
    program = ensure_program()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fastgen-load-") as folder:
        plan = Plan(program, Path(folder), arguments.quick, arguments.seed)
        for name in chosen:
            print(f"{name}: {(ALL[name].__doc__ or '').splitlines()[0]}", flush=True)
            found[name] = ALL[name](plan)
    figures = [figure for each in found.values() for figure in each.figures]
    print(f"\n{table(figures)}\n")
    took = time.monotonic() - began
    print(f"{available_cores()} cores, seed {arguments.seed}, {took:.0f} s")
    write(found, figures, arguments)


def write(found: dict[str, Found], figures: list[Figure], arguments: argparse.Namespace) -> None:
    """`load.json` and `load.svg`."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = {
        "parameters": {"seed": arguments.seed, "quick": arguments.quick},
        "cores": available_cores(),
        "figures": [asdict(figure) | {"met": figure.is_met} for figure in figures],
        "details": {name: each.details for name, each in found.items()},
    }
    (arguments.out / "load.json").write_text(json.dumps(file, indent=1) + "\n")
    load_plots.plot_all(found, arguments.out / "load.svg")


if __name__ == "__main__":
    main()
