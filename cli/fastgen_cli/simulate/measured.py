"""What steps cost, fitted to what replicas measured: to the counters that Prometheus kept.

A replica's own latency model is right for the next step, and no more: it follows the machine, and
tells apart only what its latest steps tell apart. The mean of such models, asked for steps of other
shapes, is too high, since none of their parts may be negative. One fit over all that was measured
is right on the mean of every shape that there was.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np

from fastgen_api.names import Metric
from fastgen_balancer.promql import Selector
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.profile import CAUTION
from fastgen_runtime.engine.latency import StepCost, solve_nonnegative

COUNTERS: Final = (
    f"{Metric.STEP_SECONDS}_sum",
    f"{Metric.STEP_SECONDS}_count",
    f"{Metric.STEP_TOKENS}_sum",
    Metric.OUTPUT_TOKENS,
)
"""Of a replica: seconds in steps, steps, their tokens, and output tokens. Those stand for the
requests in steps: each has one of them in each step, while its prompt is not cut into chunks."""

STIFFNESS: Final = 1e-6
"""So that steps which are all alike have a solution, too."""

WARM_UP_STEPS: Final = 2
"""First steps of a process, which touch memory for the first time: the first takes some times as
long as one like it later, and squares of errors make one such step count as much as dozens. The
engine's latency model leaves out as many."""

Series = Mapping[str, Any]
"""One series of Prometheus' answer to a range query: `metric` and `values`."""
Row = tuple[float, ...]


def queries_of(selector: Selector) -> tuple[str, ...]:
    """What to ask Prometheus for over a range, to be given to `measured_cost` in this order."""
    return tuple(selector.of(counter) for counter in COUNTERS)


def measured_cost(answers: Iterable[Iterable[Series]]) -> StepCost:
    """The cost of a step, by least squares over the times between two samples of a replica.

    Attention is part of what tokens cost: no counter tells how many tokens others attended to.
    Raises UserError where there were too few steps to tell anything.
    """
    rows = [grown for _, grown in _increases(answers)]
    if len(rows) <= len(COUNTERS):
        raise UserError(
            f"Prometheus has no {COUNTERS[1]} of a replica that made steps in that time: does it "
            "scrape the replicas every few seconds, and were there requests?"
        )
    table = np.array(rows)
    seconds, work = table[:, 0], table[:, 1:]
    normal = work.T @ work
    stiff = normal + np.diag(STIFFNESS * normal.diagonal() + STIFFNESS)
    base, token, request = solve_nonnegative(stiff, work.T @ seconds).tolist()
    return StepCost(base, token, 0.0, request, CAUTION)


def crowding(answers: Iterable[Iterable[Series]], cost: StepCost) -> dict[int, float]:
    """How much longer than by `cost` steps took while so many replicas computed at the same time.

    Replicas that share a machine share its memory and its cores, which no simulated replica does.
    """
    increases = _increases(answers)
    computing = Counter(at for at, _ in increases)
    seconds: dict[int, float] = defaultdict(float)
    predicted: dict[int, float] = defaultdict(float)
    for at, (took, steps, tokens, requests) in increases:
        count = computing[at]
        seconds[count] += took
        predicted[count] += (
            cost.base * steps + cost.per_token * tokens + cost.per_request * requests
        )
    return {count: seconds[count] / predicted[count] for count in sorted(seconds)}


def _increases(answers: Iterable[Iterable[Series]]) -> list[tuple[float, Row]]:
    """By how much all counters of a replica grew until a sample, where it made steps meanwhile."""
    samples: dict[str, dict[float, list[float]]] = {}
    for answer in answers:
        for series in answer:
            told = samples.setdefault(str(series["metric"].get("instance")), {})
            for at, value in series["values"]:
                told.setdefault(float(at), []).append(float(value))
    rows: list[tuple[float, Row]] = []
    for told in samples.values():
        whole = [one for one in sorted(told.items()) if len(one[1]) == len(COUNTERS)]
        for (_, before), (at, after) in pairwise(whole):
            grown = tuple(b - a for a, b in zip(before, after, strict=True))
            # A restart begins the counters anew.
            if min(grown) >= 0 and grown[1] > 0 and before[1] >= WARM_UP_STEPS:
                rows.append((at, grown))
    return rows
