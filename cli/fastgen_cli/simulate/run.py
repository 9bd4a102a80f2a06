"""Unchanged steps in a row: how many there are, and when each ends."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fastgen_runtime.engine.blocks import BlockPool, blocks_for
from fastgen_runtime.engine.latency import StepCost, StepShape
from fastgen_runtime.engine.request import Request


@dataclass(slots=True)
class Run:
    """Unchanged steps under way. ends: of each of them; the first `done` are noted already."""

    ends: list[float]
    done: int = 0

    def ended_by(self, now: float) -> int:
        """Steps that have ended by `now` and are not noted yet."""
        return bisect_right(self.ends, now) - self.done


def ends_of(running: Sequence[Request], cost: StepCost, now: float, steps: int) -> list[float]:
    """When the next steps of one token for each request end: the same sums as of steps planned one
    by one, so that not even rounding tells them apart."""
    count = len(running)
    attended = sum(request.num_computed for request in running)
    ends = []
    for _ in range(steps):
        attended += count
        now += cost.seconds(StepShape(count, attended, count))
        ends.append(now)
    return ends


def steps_with_blocks(running: Sequence[Request], pool: BlockPool, most: int) -> int:
    """The most steps of one token for each request, up to `most`, for which there are blocks."""

    def missing(steps: int) -> int:
        return sum(
            max(0, blocks_for(r.num_computed + steps, pool.block_size) - len(r.block_ids))
            for r in running
        )

    if len(running) * (most // pool.block_size + 1) <= pool.num_free:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if missing(middle) <= pool.num_free else (low, middle - 1)
    return low
