"""What steps cost, fitted to what replicas measured: to the counters that Prometheus kept.

A replica's own latency model is right for the next step, and no more: it follows the machine, and
tells apart only what its latest steps tell apart. The mean of such models, asked for steps of other
shapes, is too high, since none of their parts may be negative. One fit over all that was measured
is right on the mean of every shape that there was.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
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

QUERIED: Final = (*COUNTERS, Metric.RUNNING_REQUESTS)
"""And the requests that run: while some do, a replica that computes no step is between two."""

STIFFNESS: Final = 1e-6
"""So that steps which are all alike have a solution, too."""

WARM_UP_STEPS: Final = 2
"""First steps of a process, which touch memory for the first time: the first takes some times as
long as one like it later, and squares of errors make one such step count as much as dozens. The
engine's latency model leaves out as many."""

BUSY_REQUESTS: Final = 2
"""Running at each sample they hardly leave a replica idle in between."""

BUSY_STEPS: Final = 30
"""Without a break, for the time between them to count: a step is counted when it ends, so that at
either end of such a stretch a part of one is missing or too many."""

Series = Mapping[str, Any]
"""One series of Prometheus' answer to a range query: `metric` and `values`."""


def queries_of(selector: Selector) -> tuple[str, ...]:
    """What to ask Prometheus for over a range, to be given to `measured_cost` in this order."""
    return tuple(selector.of(counter) for counter in QUERIED)


def measured_cost(answers: Iterable[Iterable[Series]]) -> StepCost:
    """The cost of a step, by least squares over the times between two samples of a replica.

    A step's fixed part holds what lies between it and the next one, too. Attention is part of what
    tokens cost: no counter tells how many tokens others attended to.
    Raises UserError where there were too few steps to tell anything.
    """
    stretches = _stretches(answers)
    cost = _fit(stretches)
    return replace(cost, base=cost.base + _between_steps(stretches))


def crowding(answers: Iterable[Iterable[Series]]) -> dict[int, float]:
    """How many times as long as by the fit steps took while so many replicas computed at once.

    Replicas that share a machine share its memory and its cores, which no simulated replica does.
    Raises UserError as `measured_cost` does.
    """
    stretches = _stretches(answers)
    cost = _fit(stretches)
    computing = Counter(one.at for one in stretches if one.steps)
    seconds: dict[int, float] = defaultdict(float)
    predicted: dict[int, float] = defaultdict(float)
    for one in stretches:
        if one.steps:
            count = computing[one.at]
            seconds[count] += one.seconds
            predicted[count] += (
                cost.base * one.steps
                + cost.per_token * one.tokens
                + cost.per_request * one.requests
            )
    return {count: seconds[count] / predicted[count] for count in sorted(seconds)}


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What a replica did between two samples, the second one at `at`.

    seconds: in steps. is_busy: BUSY_REQUESTS ran at its begin and its end.
    """

    at: float
    elapsed: float
    seconds: float
    steps: float
    tokens: float
    requests: float
    is_busy: bool


def _fit(stretches: Sequence[_Stretch]) -> StepCost:
    """The time in steps alone."""
    rows = [(one.seconds, one.steps, one.tokens, one.requests) for one in stretches if one.steps]
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


def _between_steps(stretches: Iterable[_Stretch]) -> float:
    """Seconds from a step's end to the next one's begin, for each step of busy replicas:
    answers are handed over and requests taken in, or the CPU limit is used up."""
    rest = steps = 0.0
    for is_busy, group in groupby(stretches, key=lambda one: one.is_busy):
        row = list(group)
        if is_busy and sum(one.steps for one in row) >= BUSY_STEPS:
            rest += sum(one.elapsed - one.seconds for one in row)
            steps += sum(one.steps for one in row)
    return max(0.0, rest / steps) if steps else 0.0


def _stretches(answers: Iterable[Iterable[Series]]) -> list[_Stretch]:
    """Of one replica after the other, without their first steps."""
    samples: dict[str, dict[float, list[float]]] = {}
    for answer in answers:
        for series in answer:
            told = samples.setdefault(str(series["metric"].get("instance")), {})
            for at, value in series["values"]:
                told.setdefault(float(at), []).append(float(value))
    found: list[_Stretch] = []
    for told in samples.values():
        whole = [one for one in sorted(told.items()) if len(one[1]) == len(QUERIED)]
        for (begin, before), (end, after) in pairwise(whole):
            grown = [b - a for a, b in zip(before[:-1], after[:-1], strict=True)]
            # A restart begins the counters anew.
            if min(grown) >= 0 and before[1] >= WARM_UP_STEPS:
                seconds, steps, tokens, requests = grown
                is_busy = min(before[-1], after[-1]) >= BUSY_REQUESTS
                found.append(_Stretch(end, end - begin, seconds, steps, tokens, requests, is_busy))
    return found
