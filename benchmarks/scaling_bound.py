"""What nobody without foresight can do: how good the best reaction to a load or a loss can be.

Up to a moment there is a fixed number of replicas, and at that moment all that are allowed are
asked for: no autoscaler that learns of the rise when it begins can have more, and whoever is better
held more replicas before. Where replicas are lost there is no such moment, and the number stays.
Prints the share of good requests for each number, and FastGen's own where all that it asks for may
come at once.

    .venv/bin/python benchmarks/scaling_bound.py [--share 0.45] [--traces DIRECTORY] [--only step]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final

from fastgen_api.spec import Behavior, ScalingPolicy, ScalingRules
from fastgen_cli.simulate.result import Result
from fastgen_cli.simulate.scaler import FixedScaler
from fastgen_cli.simulate.scenarios import MAX_REPLICAS, Scenario, scenarios
from fastgen_cli.simulate.simulation import own_scaler, simulate


@dataclass(frozen=True, slots=True)
class Rise:
    """at: when the load begins to rise, seconds; inf: it never does. standing: how many replicas
    are there before; the first number is what the load before takes."""

    at: float
    standing: tuple[int, ...]


RISES: Final = {
    "step": Rise(400.0, (3, 4, 5, 6, 7, 8)),
    "spike ×10": Rise(600.0, (2, 4, 6, 8, 10, 12)),
    "slow GPUs arriving late": Rise(300.0, (3, 4, 5, 6, 7)),
    "crashes, then an outage": Rise(inf, (5, 6, 7, 8)),
    "Azure code": Rise(0.0, (4, 6, 8, 12, 16)),
}
"""The code trace begins with a burst. Who holds replicas for the crashes' sake loses fewer streams
with each."""


def plan(rise: Rise, standing: int) -> Callable[[float], int]:
    """So many replicas before the rise, all that are allowed from its first moment on."""
    return lambda now: standing if now < rise.at else MAX_REPLICAS


def unlimited() -> Behavior:
    """Without what a HorizontalPodAutoscaler's limits of scaling up take of a wish."""
    policy = ScalingPolicy(type="Pods", value=MAX_REPLICAS, period_seconds=1)
    return Behavior(scale_up=ScalingRules(policies=(policy,)))


def row(scenario: Scenario, replicas: str, result: Result) -> str:
    share, hours = f"{result.good_ratio:.2%}", f"{result.replica_hours:.2f}"
    return f"| {scenario.name} | {replicas} | {share} | {hours} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--share", type=float, default=1.0, help="of each scenario, from its begin")
    parser.add_argument("--traces", type=Path, help="folder of azure_llm_2023_{code,conv}.csv")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    given = parser.parse_args()
    print("| scenario | replicas before the rise | good | replica-hours |\n|---|---|---|---|")
    for scenario in scenarios(given.traces, given.share):
        if scenario.name not in RISES or given.only not in scenario.name:
            continue
        rise = RISES[scenario.name]
        for standing in rise.standing:
            result = simulate(
                replace(scenario.scoring, initial_replicas=standing),
                FixedScaler(plan(rise, standing), interval_seconds=1.0),
            )
            print(row(scenario, str(standing), result), flush=True)
        own = own_scaler(scenario.scoring, unlimited())
        result = simulate(scenario.scoring, own)
        print(row(scenario, "FastGen, all at once", result), flush=True)


if __name__ == "__main__":
    main()
