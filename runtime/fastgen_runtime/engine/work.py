"""Work in engine-seconds: what arriving requests will take of the engine, and what it has done.

A chunk's own seconds are what it adds to a step (`StepCost.chunk_seconds`). A step's fixed part is
shared by whatever is in the step, so a chunk's share of it depends on who else is there. It is
charged as if each step were as long as the streams' pace allows, the longest and cheapest kind:
of such a step of `longest` seconds `longest − base` do work, so each second of work pays
`longest / (longest − base)`. An engine whose steps are that long then does one engine-second of
work per second, and no engine that keeps the pace does more. docs/scaling.md derives it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fastgen_runtime.engine.budget import AIM, Pace
from fastgen_runtime.engine.latency import StepCost, StepShape, pieces_of, shape_of_chunks
from fastgen_runtime.engine.step import Step

_LEAST_RATIO: Final = 1.5
"""A pace that steps can hardly keep counts as this many times their fixed part: below, the price
would grow without bound, for requests that no number of replicas can serve in time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for when it arrives.

    num_cached: prompt tokens that the cache has. num_output: as answers are expected to become.
    """

    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Work:
    """Engine-seconds since the start, and the requests that they were asked by.

    owed: what the tokens that are owed now will take; the one that is no sum.
    """

    num_arrived: int = 0
    arrived_prefill: float = 0.0
    arrived_decode: float = 0.0
    done_prefill: float = 0.0
    done_decode: float = 0.0
    owed: float = 0.0


NO_WORK: Final = Work()


def price(cost: StepCost, pace: Pace, usual_tokens: int) -> float:
    """Engine-seconds per second of work in steps as long as the pace allows.

    Without a pace a step is as long as `usual_tokens` take.
    """
    targets = [
        AIM * target
        for target in (pace.seconds_per_token, pace.longest_gap_seconds)
        if target is not None
    ]
    longest = min(targets, default=cost.base + cost.per_token * usual_tokens)
    longest = max(longest, _LEAST_RATIO * cost.base)
    return longest / (longest - cost.base) if longest > cost.base else 1.0


def work_of(asked: Asked, cost: StepCost) -> tuple[float, float]:
    """Seconds that a request adds to steps: its prompt's, and those of its further tokens."""
    length = max(1, asked.num_prompt - asked.num_cached)
    prefill = cost.chunk_seconds(asked.num_prompt - length, length)
    # The first token comes with the prompt; the k-th after it attends to prompt + k tokens.
    further = max(0, asked.num_output - 1)
    attended = further * asked.num_prompt + further * (further + 1) / 2
    decode = further * (cost.per_request + cost.per_token) + cost.per_attended * attended
    return prefill, decode


class Workload:
    """Adds up the work of one engine; sums never fall."""

    __slots__ = ("_arrived", "_done", "_num_arrived", "_unpriced", "_usual_tokens")

    def __init__(self, usual_tokens: int) -> None:
        self._usual_tokens = usual_tokens
        self._unpriced: list[Asked] = []
        self._num_arrived = 0
        self._arrived = (0.0, 0.0)
        self._done = (0.0, 0.0)

    def arrive(self, asked: Asked, cost: StepCost | None, pace: Pace) -> None:
        """A request was taken; it is priced as soon as steps' cost is known."""
        self._num_arrived += 1
        self._unpriced.append(asked)
        self._price_arrivals(cost, pace)

    def step(self, step: Step, cost: StepCost | None, pace: Pace) -> None:
        """A step was computed."""
        self._price_arrivals(cost, pace)
        if cost is None:
            return
        factor = price(cost, pace, self._usual_tokens)
        chunks = [piece for chunk in step.chunks for piece in pieces_of(chunk)]
        prefill, decode = self._done
        self._done = (
            prefill + factor * _own_seconds((c for c in chunks if c[1] > 1), cost),
            decode + factor * _own_seconds((c for c in chunks if c[1] == 1), cost),
        )

    def decode(self, own_seconds: float, cost: StepCost, pace: Pace) -> None:
        """Steps of answers alone were computed, whose chunks' own seconds are these."""
        prefill, decode = self._done
        self._done = prefill, decode + price(cost, pace, self._usual_tokens) * own_seconds

    def total(self, num_owed: int, cost: StepCost | None, pace: Pace) -> Work:
        """num_owed: tokens that all requests still have to compute before their next ones."""
        owed = 0.0
        if cost is not None:
            owed = price(cost, pace, self._usual_tokens) * cost.per_token * num_owed
        return Work(self._num_arrived, *self._arrived, *self._done, owed)

    def _price_arrivals(self, cost: StepCost | None, pace: Pace) -> None:
        if cost is None or not self._unpriced:
            return
        factor = price(cost, pace, self._usual_tokens)
        for asked in self._unpriced:
            prefill, decode = work_of(asked, cost)
            self._arrived = (
                self._arrived[0] + factor * prefill,
                self._arrived[1] + factor * decode,
            )
        self._unpriced.clear()


def _own_seconds(chunks: Iterable[tuple[int, int]], cost: StepCost) -> float:
    shape: StepShape = shape_of_chunks(chunks)
    return cost.seconds(shape) - cost.base
