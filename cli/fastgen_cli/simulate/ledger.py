"""What becomes of the requests of a simulation: each is judged once, as replica and balancer do."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Final

from fastgen_api.names import Outcome, Target
from fastgen_api.spec import SLO
from fastgen_cli.simulate.call import Call
from fastgen_runtime.front.goodness import End, classify

TTFT_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0, inf,
)  # fmt: skip
"""vLLM's buckets (vllm/v1/metrics/loggers.py), which its users scale by."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that has ended; None: it never came so far."""

    arrived: float
    outcome: Outcome
    ttft_seconds: float | None
    tpot_seconds: float | None
    output_tokens: int


@dataclass(slots=True)
class Ledger:
    """Invariant: `entries` has each ended request once, and the counters are sums over it."""

    slo: SLO
    entries: list[Entry] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    misses: Counter[Target] = field(default_factory=Counter)
    first_tokens: list[int] = field(default_factory=lambda: [0] * len(TTFT_BOUNDS))
    """Of the histogram of TTFT, each bucket by itself."""
    arrived: int = 0
    arrived_prompt_tokens: int = 0
    ended_output_tokens: int = 0

    @property
    def num_bad(self) -> int:
        good = self.outcomes[Outcome.GOOD] + self.outcomes[Outcome.EXCLUDED]
        return len(self.entries) - good

    def arrive(self, call: Call) -> None:
        self.arrived += 1
        self.arrived_prompt_tokens += call.prompt_tokens

    def enter(self, call: Call, end: End, now: float) -> None:
        """A request has ended."""
        timings = call.timings
        timings.choices[0].is_complete = end is End.COMPLETED
        verdict = classify(timings, end, now, self.slo)
        ttft = timings.ttft_seconds
        self.outcomes[verdict.outcome] += 1
        self.misses.update(verdict.missed)
        if ttft is not None:
            self.first_tokens[bisect_left(TTFT_BOUNDS, ttft)] += 1
        self.ended_output_tokens += timings.output_tokens
        self.entries.append(
            Entry(call.arrived, verdict.outcome, ttft, timings.tpot_seconds, timings.output_tokens)
        )
