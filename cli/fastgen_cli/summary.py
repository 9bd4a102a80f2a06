"""Sums up what a load saw: percentiles, and the share of good requests under an SLO."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastgen_api.spec import SLO
from fastgen_cli.load import UNSENT, Sample
from fastgen_cli.percentile import percentile


@dataclass(frozen=True, slots=True)
class Summary:
    """Requests that ended in a window; times in seconds, `None` where nothing was measured."""

    requests: int
    requests_per_second: float
    output_tokens_per_second: float
    good_share: float | None
    """Good requests among those that count; `None` when none counts."""
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    tpot_p50_seconds: float | None
    tpot_p95_seconds: float | None
    gap_max_seconds: float | None
    statuses: dict[int, int]
    replicas: dict[str, int]


def counts(sample: Sample) -> bool:
    """Whether the SLO counts the request: the client's own errors are neither good nor bad."""
    return not 400 <= sample.status < 500 or sample.status == 429


def is_good(sample: Sample, slo: SLO) -> bool:
    """Whether a request that counts held every target that is set."""
    if sample.error or sample.status != 200 or sample.ttft_seconds is None:
        return False
    first = slo.time_to_first_token
    if first is not None:
        allowed = first.milliseconds / 1e3
        allowed += first.per_prompt_token_microseconds * sample.prompt_tokens / 1e6
        if sample.ttft_seconds > allowed:
            return False
    pace, gap = slo.time_per_output_token, slo.token_gap
    if pace and sample.tpot_seconds and sample.tpot_seconds > pace.milliseconds / 1e3:
        return False
    return not (gap and sample.gap_seconds and sample.gap_seconds > gap.max_milliseconds / 1e3)


def good_share(samples: Iterable[Sample], slo: SLO) -> float | None:
    """Good requests among those that count."""
    verdicts = [is_good(sample, slo) for sample in samples if counts(sample)]
    return sum(verdicts) / len(verdicts) if verdicts else None


def ended_between(samples: Iterable[Sample], start: float, end: float) -> list[Sample]:
    """Samples that ended in [start, end), seconds since the load's start."""
    return [sample for sample in samples if start <= sample.ended_seconds < end]


def sent_between(samples: Iterable[Sample], start: float, end: float) -> list[Sample]:
    """Samples that were sent in [start, end), seconds since the load's start."""
    return [sample for sample in samples if start <= sample.sent_seconds < end]


def summarize(samples: Sequence[Sample], seconds: float, slo: SLO) -> Summary:
    """Sum up samples that were gathered over so many seconds."""
    ttfts = [s.ttft_seconds for s in samples if s.ttft_seconds is not None]
    tpots = [s.tpot_seconds for s in samples if s.tpot_seconds is not None]
    gaps = [s.gap_seconds for s in samples if s.gap_seconds is not None]
    answered = [sample for sample in samples if sample.status != UNSENT]
    span = max(seconds, 1e-9)
    return Summary(
        requests=len(samples),
        requests_per_second=len(answered) / span,
        output_tokens_per_second=sum(sample.output_tokens for sample in samples) / span,
        good_share=good_share(samples, slo),
        ttft_p50_seconds=percentile(ttfts, 50),
        ttft_p95_seconds=percentile(ttfts, 95),
        tpot_p50_seconds=percentile(tpots, 50),
        tpot_p95_seconds=percentile(tpots, 95),
        gap_max_seconds=max(gaps, default=None),
        statuses=dict(Counter(sample.status for sample in samples)),
        replicas=dict(Counter(sample.replica for sample in answered if sample.replica)),
    )
