"""What a rise that nobody foresees must cost: how good the best reaction to it can be.

Until the rise there is a fixed number of replicas, and at its very first moment all that are
allowed are asked for, so that no autoscaler without foresight can have more: whoever is better
held more replicas before. Prints the share of good requests for each such number.

    .venv/bin/python benchmarks/scaling_bound.py [--share 0.45]
"""

import argparse
from dataclasses import replace
from typing import Final

from fastgen_cli.simulate.scaler import FixedScaler
from fastgen_cli.simulate.scenarios import MAX_REPLICAS, SHAPES, synthetic
from fastgen_cli.simulate.simulation import simulate

RISES: Final = {"step": (400.0, (3, 4, 5, 6, 7, 8)), "spike ×10": (600.0, (2, 4, 6, 8, 10, 12))}
"""When the load rises, seconds, and how many replicas are there before: the first is what the load
before the rise takes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--share", type=float, default=1.0, help="of each scenario, from its begin")
    share = parser.parse_args().share
    print("| scenario | replicas before the rise | good |\n|---|---|---|")
    for shape in SHAPES:
        if shape.name not in RISES:
            continue
        rise, numbers = RISES[shape.name]
        setup = synthetic(shape, share).scoring
        for standing in numbers:

            def plan(now: float, before: int = standing, at: float = rise) -> int:
                return before if now < at else MAX_REPLICAS

            result = simulate(
                replace(setup, initial_replicas=standing), FixedScaler(plan, interval_seconds=1.0)
            )
            print(f"| {shape.name} | {standing} | {result.good_ratio:.2%} |", flush=True)


if __name__ == "__main__":
    main()
