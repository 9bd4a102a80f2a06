"""What the picker is told, by the FastGenDeployment or by arguments."""

from dataclasses import dataclass
from typing import Final

from fastgen_api.scaling import hold_seconds
from fastgen_api.spec import Routing, Spec

MAX_WAIT_SECONDS: Final = 30.0
"""Longest stay in the queue: clients of chat give up about then."""


MAX_HOLD_SECONDS: Final = 600.0
"""Longest hold that can be asked for; Envoy's own bound of the same leaves a margin to it."""


@dataclass(frozen=True, slots=True)
class Settings:
    max_queued_requests: int = 1000
    """Of this process."""
    max_concurrent_requests: int = 256
    """Of a replica that has not told its own."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    ttft_seconds: float | None = None
    """The target for an empty prompt; None when the SLO has none."""
    drain_seconds: float = 120.0
    prefers_prefix: bool = True
    """Whether prompts that begin alike go to the same replica, load allowing."""
    hold_seconds: float = 0.0
    """How long a request waits for the first replica; 0: the deployment is never at zero."""

    @property
    def drain_limit_seconds(self) -> float:
        """Longest wait for the open requests of a balancer that ends: held ones, then streams."""
        return self.hold_seconds + self.drain_seconds


def settings_of(
    spec: Spec, max_wait_seconds: float = MAX_WAIT_SECONDS, pods: int | None = None
) -> Settings:
    """A deployment's settings in one of its balancer's pods: the queue is divided among them.

    `pods`: how many the balancer has; None: as many as the deployment wants.
    """
    pods = max(1, spec.balancer.replicas if pods is None else pods)
    ttft = spec.slo.time_to_first_token
    return Settings(
        max_queued_requests=-(-spec.balancer.max_queued_requests // pods),
        max_concurrent_requests=spec.engine.max_concurrent_requests,
        max_wait_seconds=max_wait_seconds,
        ttft_seconds=ttft.milliseconds / 1000 if ttft else None,
        drain_seconds=float(spec.rollout.drain_seconds),
        hold_seconds=float(hold_seconds(spec)),
        # Without a prefix cache every replica computes the whole prompt.
        prefers_prefix=spec.balancer.routing is Routing.PREFIX and spec.engine.prefix_caching,
    )


def static_settings(
    max_queued_requests: int | None, drain_seconds: float | None, max_wait_seconds: float
) -> Settings:
    """The settings of the one balancer outside Kubernetes; None takes the default."""
    defaults = Settings()
    return Settings(
        max_queued_requests=defaults.max_queued_requests
        if max_queued_requests is None
        else max_queued_requests,
        drain_seconds=defaults.drain_seconds if drain_seconds is None else drain_seconds,
        max_wait_seconds=max_wait_seconds,
    )
