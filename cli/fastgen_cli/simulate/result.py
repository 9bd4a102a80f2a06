"""What a simulation says: goodness, replica-hours, reversals, the timeline."""

from collections.abc import Iterable
from dataclasses import dataclass

from fastgen_api.names import Outcome
from fastgen_cli.percentile import percentile
from fastgen_cli.simulate.ledger import Entry, Ledger


@dataclass(frozen=True, slots=True)
class Moment:
    """From `at` on, seconds: replicas asked for, replicas ready, GPUs held."""

    at: float
    wanted: int
    ready: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Result:
    """Of one scaler over one trace. Percentiles are of the requests that have such a time."""

    seconds: float
    requests: int
    good_ratio: float
    outcomes: dict[Outcome, int]
    replica_hours: float
    reversals: int
    most_replicas: int
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    prompt_tokens: int
    output_tokens: int
    timeline: tuple[Moment, ...]
    entries: tuple[Entry, ...]
    steps: int
    planned_steps: int

    @property
    def reversals_per_hour(self) -> float:
        return self.reversals / (self.seconds / 3600) if self.seconds else 0.0


def result_of(
    seconds: float,
    ledger: Ledger,
    timeline: tuple[Moment, ...],
    gpu_seconds: float,
    steps: tuple[int, int],
) -> Result:
    """steps: all that were made, and those that the scheduler planned."""
    entries = tuple(ledger.entries)
    counted = sum(count for o, count in ledger.outcomes.items() if o is not Outcome.EXCLUDED)
    ttft = sorted(e.ttft_seconds for e in entries if e.ttft_seconds is not None)
    tpot = sorted(e.tpot_seconds for e in entries if e.tpot_seconds is not None)
    return Result(
        seconds=seconds,
        requests=len(entries),
        good_ratio=ledger.outcomes[Outcome.GOOD] / counted if counted else 1.0,
        outcomes={outcome: ledger.outcomes[outcome] for outcome in Outcome},
        replica_hours=gpu_seconds / 3600,
        reversals=reversals(moment.wanted for moment in timeline),
        most_replicas=max((moment.gpus for moment in timeline), default=0),
        ttft_p50=percentile(ttft, 50),
        ttft_p90=percentile(ttft, 90),
        ttft_p99=percentile(ttft, 99),
        tpot_p50=percentile(tpot, 50),
        tpot_p99=percentile(tpot, 99),
        prompt_tokens=ledger.arrived_prompt_tokens,
        output_tokens=ledger.ended_output_tokens,
        timeline=timeline,
        entries=entries,
        steps=steps[0],
        planned_steps=steps[1],
    )


def reversals(wanted: Iterable[int]) -> int:
    """How often the direction of the changes turned."""
    count = direction = 0
    last = None
    for replicas in wanted:
        if last is not None and replicas != last:
            turn = 1 if replicas > last else -1
            count += turn == -direction
            direction = turn
        last = replicas
    return count
