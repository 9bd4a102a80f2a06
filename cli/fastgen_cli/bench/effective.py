"""Effective throughput, as FastGen's authors measure it.

The measure of "DeepSpeed-FastGen" (Holmes et al., arXiv 2401.08671, and the blog of the same name,
section 4 A, "Effective Throughput"), with what the text leaves open taken from the benchmark's
code (DeepSpeedExamples, `benchmarks/inference/mii`). A request succeeds when

    TTFT <= prompt tokens / 512 seconds, and
    EMA_k < 1 / SLA seconds for every token k after the first,

where EMA is the exponential moving average with a span of 16 over the times between tokens, whose
first values are weighted as if nothing had come before (pandas' `ewm(span=16).mean()`):

    EMA_k = sum_i w^i x_(k-i) / sum_i w^i,    w = 1 - 2 / (span + 1),    i = 0 ... k

A one-token answer is judged by its TTFT alone. Effective throughput is the requests per second,
from the first request's start to the last one's end, times the share that succeeded.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fastgen_cli.bench.record import Record

PROMPT_TOKENS_PER_SECOND: Final = 512
SPAN: Final = 16
RATES: Final = (1, 2, 3, 4, 6, 8)
"""SLAs of the benchmark's code, tokens/s; the paper shows 2, 4 and 6."""


def moving_averages(values: Iterable[float], span: int = SPAN) -> list[float]:
    """The exponential moving average after each value; the same length as `values`."""
    weight = 1 - 2 / (span + 1)
    total = weights = 0.0
    out = []
    for value in values:
        total = value + weight * total
        weights = 1 + weight * weights
        out.append(total / weights)
    return out


def succeeds(record: Record, tokens_per_second: float) -> bool:
    """Whether a request kept the SLA of so many tokens a second."""
    ttft = record.ttft_seconds
    if record.failure or ttft is None or ttft > record.prompt_tokens / PROMPT_TOKENS_PER_SECOND:
        return False
    return all(average < 1 / tokens_per_second for average in moving_averages(record.token_gaps))


def effective_throughput(
    records: Sequence[Record], seconds: float, tokens_per_second: float
) -> float:
    """Successful requests per second; seconds: from the first start to the last end."""
    return sum(succeeds(record, tokens_per_second) for record in records) / max(seconds, 1e-9)
