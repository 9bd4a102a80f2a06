"""What the autoscaler knows when it decides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalSignals:
    """What this balancer pod sees itself, now: it can call for replicas, never let them go."""

    queued_requests: int
    """Requests held here because no replica takes them."""
    in_flight_requests: int
    """Requests sent to a replica and not ended."""
    ready_endpoints: int
    """Endpoints that may be picked."""
    saturated_endpoints: int
    """Ready endpoints whose GetLoad tells of waiting requests, a full batch or full blocks."""
    owed_tokens: int
    """Tokens that the replicas still have to compute for the requests they hold."""
