"""How many tokens per second are asked for."""

from dataclasses import dataclass

from fastgen_balancer.signals import MetricSignals, ReplicaReading


@dataclass(frozen=True, slots=True)
class Demand:
    """What is offered, in tokens and tokens per second."""

    arriving: float
    """What was served, what the backlog grew by, and what was refused."""
    backlog: float
    """What waits at the replicas and at the balancers."""
    growth: float
    """Of the backlog, per second; negative while the replicas catch up."""
    lead_seconds: float
    """Until a replica that is asked for now serves, and in which it should clear the backlog."""

    @property
    def total(self) -> float:
        """Tokens per second that the replicas must carry from `lead_seconds` on."""
        left = max(0.0, self.backlog + self.growth * self.lead_seconds)
        return max(0.0, self.arriving) + left / self.lead_seconds

    @property
    def caught_up_soon(self) -> bool:
        """There is a backlog, and it will be gone before a new replica could help."""
        return self.backlog > 0 > self.growth * self.lead_seconds + self.backlog


def demand_of(
    metrics: MetricSignals, readings: tuple[ReplicaReading, ...], lead_seconds: float
) -> Demand | None:
    """The demand; None when what is served is not known.

    A waiting or refused request counts as much as the mean served one.
    """
    served, short = metrics.tokens_per_second, metrics.short
    if served is None:
        return None
    owed = sum(r.owed or 0.0 for r in readings)
    ended = 0.0 if short is None else short.total - short.refused
    if short is None or ended <= 0:
        return Demand(served, owed, 0.0, lead_seconds)
    tokens = served * short.window_seconds / ended
    waiting = sum(r.waiting or 0.0 for r in readings) + (metrics.queued_requests or 0.0)
    growth = sum(r.waiting_growth or 0.0 for r in readings) + (metrics.queue_growth or 0.0)
    refused = tokens * short.refused / short.window_seconds
    return Demand(
        arriving=served + growth * tokens + refused,
        backlog=max(owed, waiting * tokens),
        growth=growth * tokens,
        lead_seconds=lead_seconds,
    )
