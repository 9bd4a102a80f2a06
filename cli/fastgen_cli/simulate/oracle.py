"""The fewest replica-hours that meet the SLO when all arrivals are known, by search.

Plans give a number of replicas for each interval and are tried in the same simulator. First the
utilisation is found, by bisection, with which the known work is planned; then single stretches of
the plan are tried with a replica less, and kept where the SLO still holds. What is found is an
upper bound of the optimum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Final

from fastgen_balancer.scaling_policy import target_ratio
from fastgen_cli.simulate.result import Result
from fastgen_cli.simulate.scaler import FixedScaler
from fastgen_cli.simulate.simulation import Setup, simulate
from fastgen_cli.simulate.trace import Arrival

INTERVAL_SECONDS: Final = 30.0
LEAST_UTILISATION: Final = 0.2
MOST_UTILISATION: Final = 1.3
BISECTIONS: Final = 5
TRIES: Final = 12
USUAL_BATCH: Final = 24
"""Answers that share a step's fixed time, where work is estimated."""

Plan = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Oracle:
    """meets: whether any plan reached the SLO; else this is the one with the most good requests."""

    plan: Plan
    result: Result
    meets: bool


def seconds_of(arrival: Arrival, setup: Setup) -> float:
    """Engine time that a request takes, about."""
    cost = setup.profile.cost
    prompt, output = arrival.prompt_tokens, arrival.output_tokens
    return (
        prompt * (cost.per_token + cost.per_attended * prompt / 2)
        + output * (cost.base / USUAL_BATCH + cost.per_token + cost.per_request)
        + output * cost.per_attended * (prompt + output / 2)
    )


def planned(setup: Setup, utilisation: float) -> Plan:
    """Replicas for each interval: enough for its work and for what comes while one starts."""
    count = max(1, ceil(setup.seconds / INTERVAL_SECONDS))
    work = [0.0] * count
    for arrival in setup.trace:
        if arrival.at < setup.seconds:
            work[int(arrival.at / INTERVAL_SECONDS)] += seconds_of(arrival, setup)
    supply = setup.supply
    late = supply.late_seconds if supply.at_once < setup.max_replicas else 0.0
    ahead = ceil((setup.profile.cold_start_seconds * 1.1 + late) / INTERVAL_SECONDS) + 1
    needed = [ceil(one / INTERVAL_SECONDS / utilisation) for one in work]
    return tuple(
        max(setup.min_replicas, min(setup.max_replicas, max(needed[i : i + ahead + 1])))
        for i in range(count)
    )


def run(setup: Setup, plan: Plan, least_good_ratio: float = 0.0) -> Result:
    """The plan in the simulator, to the end or until the share of good requests is out of reach."""

    def wanted(now: float) -> int:
        return plan[min(len(plan) - 1, int(now / INTERVAL_SECONDS))]

    return simulate(
        setup, FixedScaler(wanted, interval_seconds=1.0), least_good_ratio=least_good_ratio
    )


def search(setup: Setup, seed: int = 0, tries: int = TRIES) -> Oracle:
    """The best plan found; the same for the same seed."""
    target = target_ratio(setup.slo)
    wanted = 1.0 if target is None else target
    most = planned(setup, LEAST_UTILISATION)
    best = Oracle(most, run(setup, most, wanted), True)
    if best.result.good_ratio < wanted:
        top = tuple([setup.max_replicas] * len(most))
        result = run(setup, top)
        if result.good_ratio < wanted:
            return Oracle(top, result, False)
        best = Oracle(top, result, True)
    low, high = LEAST_UTILISATION, MOST_UTILISATION
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        plan = planned(setup, middle)
        result = run(setup, plan, wanted)
        if result.good_ratio >= wanted:
            low = middle
            best = _better(best, Oracle(plan, result, True))
        else:
            high = middle
    return _trimmed(setup, best, wanted, Random(seed), tries)


def _better(one: Oracle, other: Oracle) -> Oracle:
    return other if other.result.replica_hours < one.result.replica_hours else one


def _trimmed(setup: Setup, best: Oracle, wanted: float, rng: Random, tries: int) -> Oracle:
    """Long stretches first: they save most when they hold."""
    length = max(1, len(best.plan) // 2)
    for attempt in range(tries):
        plan = shorter(best.plan, length, setup.min_replicas, rng)
        if plan is not None:
            result = run(setup, plan, wanted)
            if result.good_ratio >= wanted:
                best = _better(best, Oracle(plan, result, True))
                continue
        if attempt % 3 == 2:
            length = max(2, length // 2)
    return best


def shorter(plan: Sequence[int], length: int, least: int, rng: Random) -> Plan | None:
    """The plan with a replica less over a stretch of `length`; None where none is to spare."""
    begin = rng.randrange(max(1, len(plan) - length + 1))
    out = [max(least, n - 1) if begin <= i < begin + length else n for i, n in enumerate(plan)]
    return None if out == list(plan) else tuple(out)


def smallest_fleet(
    setup: Setup,
    begin: Callable[[int], None] | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[int, Result] | None:
    """The fewest replicas that meet the SLO when their number never changes; None: none do.

    begin: told the number that is tried next; progress: the share of that run.
    """
    wanted = target_ratio(setup.slo) or 0.0
    low, high = max(1, setup.min_replicas), setup.max_replicas
    best: tuple[int, Result] | None = None
    while low <= high:
        middle = (low + high) // 2
        if begin:
            begin(middle)
        result = simulate(
            replace(setup, initial_replicas=middle),
            FixedScaler(middle),
            progress,
            least_good_ratio=wanted,
        )
        if result.good_ratio >= wanted:
            best, high = (middle, result), middle - 1
        else:
            low = middle + 1
    return best
