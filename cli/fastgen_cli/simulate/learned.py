"""The latency model that replicas have learnt, from what Prometheus kept of their words."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from fastgen_api.names import CostPart, Metric
from fastgen_balancer.promql import Selector
from fastgen_cli.errors import UserError
from fastgen_cli.simulate.profile import CAUTION
from fastgen_runtime.engine.latency import StepCost

STEPS: Final = f"{Metric.STEP_SECONDS}_count"

Series = Mapping[str, Any]
"""One series of Prometheus' answer to a range query: `metric` and `values`."""


def queries_of(selector: Selector) -> tuple[str, str]:
    """What to ask Prometheus for over a range: the cost of steps, and how many there were."""
    return selector.of(Metric.STEP_COST), selector.of(STEPS)


def learned_cost(costs: Iterable[Series], steps: Iterable[Series]) -> StepCost:
    """What a step cost, as all replicas took it on the mean of the steps that they made.

    A prediction is linear in the parts of a cost, so their means predict the mean of what was
    predicted for a step of any shape. Raises UserError where no replica had learnt anything.
    """
    parts: dict[tuple[str, float], dict[str, float]] = {}
    for series in costs:
        labels = series["metric"]
        for at, value in series["values"]:
            told = parts.setdefault((str(labels.get("instance")), float(at)), {})
            told[labels["part"]] = float(value)
    sums = dict.fromkeys(CostPart, 0.0)
    weight = 0.0
    for series in steps:
        instance = str(series["metric"].get("instance"))
        for (_, before), (at, after) in pairwise(series["values"]):
            made = float(after) - float(before)
            told = parts.get((instance, float(at)), {})
            # A restart begins both anew; before the third step nothing is known.
            if made <= 0 or not any(told.values()):
                continue
            weight += made
            for part in CostPart:
                sums[part] += made * told.get(part, 0.0)
    if not weight:
        raise UserError(
            f"Prometheus has no {Metric.STEP_COST} of a replica that made steps in that time: does "
            "it scrape the replicas, and are they of this version?"
        )
    base, token, attended, request = (sums[part] / weight for part in CostPart)
    return StepCost(base, token, attended, request, CAUTION)
