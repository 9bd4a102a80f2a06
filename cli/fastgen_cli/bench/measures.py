"""What the records of a run add up to."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from fastgen_api.spec import SLO
from fastgen_cli.bench.effective import RATES, effective_throughput
from fastgen_cli.bench.record import Record
from fastgen_cli.percentile import percentile
from fastgen_cli.summary import counts, is_good

PERCENTS = (50, 90, 95, 99)


class Distribution(msgspec.Struct, frozen=True):
    """Of some values; percentiles are nearest ranks, so values that were seen."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


class Failures(msgspec.Struct, frozen=True):
    """Failures of one kind, and the words of one of them."""

    count: int
    example: str


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of the answered requests: means of what was asked and what was counted, and the share
    of requests where both are the same."""

    asked_mean: float
    counted_mean: float
    exact_percent: float


class Point(msgspec.Struct, frozen=True):
    """One load and what it met. seconds: from the first request's start to the last one's end.

    Rates are over these seconds. latency: from start to end. gap: each request's longest time
    between two tokens; token_gap: every such time of all requests. good_percent, goodput: requests
    that kept the SLO, of those that count, and per second; None without an SLO.
    effective_throughput: per SLA in tokens/s (`effective.py`). latest_send_seconds: the most that a
    request left after it was due: the load generator's own fault.
    """

    name: str
    clients: int | None
    rate: float | None
    is_complete: bool
    requests: int
    succeeded: int
    failures: dict[str, Failures]
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    latency_seconds: Distribution | None
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    gap_seconds: Distribution | None
    token_gap_seconds: Distribution | None
    good_percent: float | None
    goodput: float | None
    effective_throughput: dict[str, float]
    prompt_tokens: Lengths | None
    output_tokens: Lengths | None
    latest_send_seconds: float


def distribution(values: Sequence[float]) -> Distribution | None:
    """None without values."""
    if not values:
        return None
    p50, p90, p95, p99 = (percentile(values, percent) or 0.0 for percent in PERCENTS)
    mean = sum(values) / len(values)
    return Distribution(len(values), mean, p50, p90, p95, p99, max(values))


def seconds_of(records: Sequence[Record]) -> float:
    """From the first start to the last end; 0 without records."""
    if not records:
        return 0.0
    return max(r.ended_seconds for r in records) - min(r.sent_seconds for r in records)


def measure(
    name: str,
    records: Sequence[Record],
    slo: SLO | None,
    *,
    clients: int | None = None,
    rate: float | None = None,
    is_complete: bool = True,
) -> Point:
    """Sums up a run; records of requests that were given up do not belong into it."""
    seconds = seconds_of(records)
    span = max(seconds, 1e-9)
    answered = [record for record in records if record.failure is None]
    good, good_percent = _good(records, slo) if slo else (0, None)
    outputs = sum(record.output_tokens for record in answered)
    prompts = sum(record.prompt_tokens for record in answered)
    tpots = (record.tpot_seconds for record in answered)
    gaps = [record.token_gaps for record in answered]
    return Point(
        name=name,
        clients=clients,
        rate=rate,
        is_complete=is_complete,
        requests=len(records),
        succeeded=len(answered),
        failures=_failures(records),
        seconds=seconds,
        requests_per_second=len(answered) / span,
        output_tokens_per_second=outputs / span,
        total_tokens_per_second=(prompts + outputs) / span,
        latency_seconds=distribution([record.latency_seconds for record in answered]),
        ttft_seconds=distribution([r.ttft_seconds for r in answered if r.ttft_seconds is not None]),
        tpot_seconds=distribution([tpot for tpot in tpots if tpot is not None]),
        gap_seconds=distribution([max(one) for one in gaps if one]),
        token_gap_seconds=distribution([gap for one in gaps for gap in one]),
        good_percent=good_percent,
        goodput=good / span if slo else None,
        effective_throughput={
            str(rate): effective_throughput(records, seconds, rate) for rate in RATES
        },
        prompt_tokens=_lengths([(r.asked_prompt_tokens, r.prompt_tokens) for r in answered]),
        output_tokens=_lengths([(r.asked_output_tokens, r.output_tokens) for r in answered]),
        latest_send_seconds=max((record.late_seconds for record in records), default=0.0),
    )


def _good(records: Sequence[Record], slo: SLO) -> tuple[int, float | None]:
    """Requests that kept the SLO, and their percentage of those that count."""
    verdicts = [is_good(s, slo) for s in (r.as_sample() for r in records) if counts(s)]
    return sum(verdicts), 100 * sum(verdicts) / len(verdicts) if verdicts else None


def _failures(records: Sequence[Record]) -> dict[str, Failures]:
    failed = [record.failure for record in records if record.failure]
    examples = {failure.kind: failure.message for failure in reversed(failed)}
    kinds = Counter(failure.kind for failure in failed)
    return {kind: Failures(count, examples[kind]) for kind, count in kinds.most_common()}


def _lengths(pairs: Sequence[tuple[int, int]]) -> Lengths | None:
    if not pairs:
        return None
    number = len(pairs)
    return Lengths(
        sum(asked for asked, _ in pairs) / number,
        sum(counted for _, counted in pairs) / number,
        100 * sum(asked == counted for asked, counted in pairs) / number,
    )
