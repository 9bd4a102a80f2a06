"""Decides how much load to send, when to stop it, and whether the second replica helped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fastgen_api.spec import SLO
from fastgen_cli.load import NOT_SENT, Sample
from fastgen_cli.summary import Summary, ended_between, sent_between, summarize

WINDOW_SECONDS: Final = 20.0
OVERLOAD: Final = 1.6
"""Requests/s of the burst as a multiple of what one replica was seen to carry.

With few streams, so that the measurement itself does not call for a second replica; continuous
batching makes the replica carry somewhat more when it is full.
"""
BACKLOG_SECONDS: Final = 10.0
"""The cap on requests in flight holds what one replica works off in so long."""
MIN_CONCURRENT: Final = 20
"""More than two replicas of the example run at once, so that there is a queue to see."""
MIN_TELLING: Final = 5
"""Fewer requests than that say nothing about a share."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The longest that each part of the burst may take, seconds."""

    calibrate: float = 10.0
    scale_up: float = 150.0
    settle: float = 75.0
    scale_down: float = 240.0


def first_rate(carried_per_second: float) -> float:
    """Requests/s that are more than one replica carries and less than two do."""
    return OVERLOAD * max(carried_per_second, 0.1)


def max_in_flight(carried_per_second: float) -> int:
    """A cap that bounds how long the backlog takes to work off once there are two replicas."""
    return max(MIN_CONCURRENT, round(BACKLOG_SECONDS * carried_per_second))


def carried(samples: Sequence[Sample], streams: int) -> float:
    """Requests/s that a replica carried with so many streams in a closed loop.

    By Little's law, from the latencies: the end of a loop, when streams run out one by one, does
    not distort it.
    """
    latencies = [one.ended_seconds - one.sent_seconds for one in samples if not one.error]
    return streams * len(latencies) / sum(latencies) if latencies else 0.0


def next_rate(rate: float, window: Summary, slo: SLO) -> float:
    """The rate after another look at the single replica: raised when it holds the SLO.

    A machine that was busy during the calibration may carry more afterwards. A rate is never
    lowered: the cap on requests in flight bounds the backlog.
    """
    is_telling = window.requests >= MIN_TELLING
    return rate * 1.25 if is_telling and not is_missed(window, slo) else rate


def is_missed(summary: Summary, slo: SLO) -> bool:
    """Whether the share of good requests in a window is below the SLO's target."""
    share = summary.good_share
    return share is not None and 100 * share < float(slo.target_percent)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Requests that were sent just before the second replica was ready, and just before the end."""

    before: Summary
    after: Summary

    @property
    def is_better(self) -> bool:
        """Whether the first token came sooner, at the median and at the 95th percentile."""
        pairs = (
            (self.before.ttft_p50_seconds, self.after.ttft_p50_seconds),
            (self.before.ttft_p95_seconds, self.after.ttft_p95_seconds),
        )
        return all(old is not None and new is not None and new < old for old, new in pairs)


def compare(samples: Sequence[Sample], ready_at: float, ended_at: float, slo: SLO) -> Comparison:
    """By the time of sending, so that a request still waiting at the end is not left out."""
    sent = [one for one in samples if one.error != NOT_SENT]
    after_from = max(ready_at, ended_at - WINDOW_SECONDS)
    return Comparison(
        summarize(sent_between(sent, ready_at - WINDOW_SECONDS, ready_at), WINDOW_SECONDS, slo),
        summarize(sent_between(sent, after_from, ended_at), ended_at - after_from, slo),
    )


def may_end(samples: Sequence[Sample], ready_at: float, now: float, slo: SLO) -> bool:
    """Whether the second replica's effect is plain: a window since then met the TTFT target."""
    if now - ready_at < WINDOW_SECONDS + 5:
        return False
    first_only = msgspec.structs.replace(slo, time_per_output_token=None, token_gap=None)
    window = summarize(ended_between(samples, now - 10, now), 10, first_only)
    return window.good_share is not None and not is_missed(window, slo)
