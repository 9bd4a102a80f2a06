"""From the times of tokens to what is compared: measures of a run, and medians over rounds."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fastgen_cli.percentile import nearest_rank
from peers.protocol import Answer, Request
from peers.workloads import Name, Workload

Measures = dict[str, float]
"""By name: wall_seconds, output_tokens_per_second, total_tokens_per_second, ttft_p50_seconds,
ttft_p99_seconds, tpot_p50_seconds, tpot_p99_seconds; of W3 also longest_gap_seconds, of streams
while the long prompt is computed, long_ttft_seconds, and usual_gap_seconds, the median elsewhere.
"""
MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Spread:
    """A measure over rounds."""

    median: float
    least: float
    most: float
    rounds: int


def tpot(answer: Answer) -> float:
    """Seconds per token after the first."""
    return (answer.times[-1] - answer.times[0]) / (len(answer.times) - 1)


def ttft(request: Request, answer: Answer) -> float:
    """Seconds from a request's arrival to its first token."""
    return answer.times[0] - request.at


def measure(workload: Workload, parts: Sequence[Sequence[Answer]]) -> Measures:
    """Measures of one run; parts: answers to the workload's parts, in their order."""
    answers = [answer for part in parts for answer in part]
    requests = workload.requests
    wall = sum(max(answer.times[-1] for answer in part) for part in parts)
    outputs = sum(len(answer.times) for answer in answers)
    prompts = sum(len(request.prompt) for request in requests)
    chosen = list(zip(requests, answers, strict=True))
    stall: Measures = {}
    if workload.name is Name.STALL:
        *chosen, (long, long_answer) = chosen
        stall = stall_measures([answer for _, answer in chosen], long, long_answer)
    first = [ttft(*pair) for pair in chosen]
    paces = [tpot(answer) for _, answer in chosen]
    return {
        "wall_seconds": wall,
        "output_tokens_per_second": outputs / wall,
        "total_tokens_per_second": (outputs + prompts) / wall,
        "ttft_p50_seconds": statistics.median(first),
        "ttft_p99_seconds": nearest_rank(first, 99),
        "tpot_p50_seconds": statistics.median(paces),
        "tpot_p99_seconds": nearest_rank(paces, 99),
        **stall,
    }


def stall_measures(streams: Iterable[Answer], long: Request, long_answer: Answer) -> Measures:
    """Gaps of streams that touch the time from the long prompt's arrival to its first token.

    Raises ValueError where no stream has a gap there: they had ended before.
    """
    ended = long_answer.times[0]
    inside: list[float] = []
    outside: list[float] = []
    for stream in streams:
        for before, after in pairwise(stream.times):
            is_inside = after > long.at and before < ended
            (inside if is_inside else outside).append(after - before)
    if not inside:
        raise ValueError("no stream ran while the long prompt was computed")
    return {
        "longest_gap_seconds": max(inside),
        "long_ttft_seconds": ended - long.at,
        "usual_gap_seconds": statistics.median(outside) if outside else math.nan,
    }


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of a measure; at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def spreads(rounds: Sequence[Measures]) -> dict[str, Spread]:
    """Of each measure that every round has."""
    names = [name for name in rounds[0] if all(name in each for each in rounds)]
    return {name: spread([each[name] for each in rounds]) for name in names}


def num_equal(said: Sequence[Sequence[int] | None], expected: Sequence[Sequence[int]]) -> int:
    """How many answers are the expected ones, token by token."""
    return sum(
        ids is not None and list(ids) == list(wanted)
        for ids, wanted in zip(said, expected, strict=True)
    )


def first_difference(said: Sequence[int], expected: Sequence[int]) -> int | None:
    """The place of the first token that differs; None where all are equal."""
    pairs = zip(said, expected, strict=True)
    return next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
