"""How much work is asked for, in engine-seconds per second."""

from dataclasses import dataclass
from math import sqrt
from typing import Final

from fastgen_balancer.scaling_policy import LATEST_WINDOW_SECONDS, SHORT_WINDOW_SECONDS
from fastgen_balancer.signals import MetricSignals, ReplicaReading

SCRAPE_SECONDS: Final = 5.0
"""By so much a window is longer than the time between its first and its last sample."""
SURGE: Final = 4.0
"""Standard deviations: by chance requests that come at random exceed it once in many days."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is offered; rates in engine-seconds per second."""

    arriving: float
    """What replicas took on, what queues up before them, and what was refused."""
    done: float
    """What replicas did: more than arrives while they catch up or answer long."""
    backlog: float
    """Engine-seconds that wait at the replicas and at the balancers."""
    growth: float
    """Of the backlog, per second; negative while the replicas catch up."""
    lead_seconds: float
    """Until a replica that is asked for now serves, and in which it should clear the backlog."""
    requests: float | None = None
    """That arrive, per second; None: not known."""
    ahead: float = 0.0
    """By how much more will arrive by then if it goes on as it did."""

    @property
    def total(self) -> float:
        """What the replicas must carry from `lead_seconds` on."""
        left = max(0.0, self.backlog + self.growth * self.lead_seconds)
        return self.steady + left / self.lead_seconds

    @property
    def steady(self) -> float:
        """What they must carry once the backlog is gone, however many of them come meanwhile."""
        return max(0.0, self.arriving) + self.ahead

    @property
    def present(self) -> float:
        """What fewer replicas would have to carry: answers under way count until they end."""
        return max(self.total, self.done)

    @property
    def caught_up_soon(self) -> bool:
        """There is a backlog, and it will be gone before a new replica could help."""
        return self.backlog > 0 > self.growth * self.lead_seconds + self.backlog

    @property
    def is_none(self) -> bool:
        """Nothing arrives, waits or is under way."""
        return self.present == 0 and self.backlog == 0


def request_work(metrics: MetricSignals) -> float | None:
    """Engine-seconds of a mean request that arrived lately; None when none did."""
    if not metrics.arriving or not metrics.arriving_requests:
        return None
    return metrics.arriving / metrics.arriving_requests


def demand_of(
    metrics: MetricSignals,
    readings: tuple[ReplicaReading, ...],
    each: float | None,
    lead_seconds: float,
    carried: float,
    influx: float | None = None,
) -> Demand | None:
    """The demand; None when what arrives or what is done is not known.

    each: engine-seconds of a mean request, as which waiting and refused ones count. carried:
    engine-seconds per second that the ready replicas can do together: what is beyond them in a
    surge is the backlog to come. influx: requests per second of a surge, by the balancers' word.
    """
    if metrics.arriving is None or metrics.done is None:
        return None
    owed = sum(r.owed or 0.0 for r in readings)
    if each is None:
        return Demand(metrics.arriving, metrics.done, owed, 0.0, lead_seconds)
    rates = [rate for rate in (surge(metrics, readings), influx) if rate is not None]
    arriving, latest = metrics.arriving, max(rates, default=None)
    if latest is not None:
        arriving = max(arriving, latest * each)
    queued, short = metrics.queued_requests or 0.0, metrics.short
    waiting = sum(r.waiting or 0.0 for r in readings) + queued
    queue_growth = metrics.queue_growth or 0.0
    growth = sum(r.waiting_growth or 0.0 for r in readings) + queue_growth
    refused = 0.0 if short is None else short.refused / short.window_seconds
    # What waits at replicas has arrived there; what balancers hold has not.
    held = queue_growth + refused
    requests = max(0.0, metrics.arriving_requests or 0.0, latest or 0.0) + held
    arriving += held * each
    growth *= each
    if latest is not None:
        growth = max(growth, arriving - carried)
    return Demand(
        arriving=arriving,
        done=metrics.done,
        backlog=max(owed, waiting * each),
        growth=growth,
        lead_seconds=lead_seconds,
        requests=max(0.0, requests),
    )


def surge(metrics: MetricSignals, readings: tuple[ReplicaReading, ...]) -> float | None:
    """Requests per second of the latest window where they are far more than before; else None.

    Two Poisson counts are compared by their pooled variance (Przyborowski and Wilenski, Biometrika
    1940). New replicas take from what others hold, which is no surge.
    """
    latest, mean = metrics.latest_requests, metrics.arriving_requests
    if latest is None or not mean or not all(r.whole_window for r in readings):
        return None
    new, all_ = LATEST_WINDOW_SECONDS - SCRAPE_SECONDS, SHORT_WINDOW_SECONDS - SCRAPE_SECONDS
    old = all_ - new
    rise = (latest - mean) * all_ / old
    return latest if rise > SURGE * sqrt(mean * (1 / new + 1 / old)) else None
