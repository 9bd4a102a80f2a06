"""The rules that a decision keeps to: the user's bounds and behavior, and our constants."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from fastgen_api.spec import SLO, ScalingPolicy, ScalingRules, Spec

DEFAULT_PENDING_SECONDS: Final = 600.0
"""How long replicas may take to become ready while no cold start was measured."""
SHORT_WINDOW_SECONDS: Final = 30.0
LONG_WINDOW_SECONDS: Final = 300.0

UP_POLICIES: Final = (
    ScalingPolicy(type="Percent", value=100, period_seconds=15),
    ScalingPolicy(type="Pods", value=4, period_seconds=15),
)
DOWN_POLICIES: Final = (ScalingPolicy(type="Percent", value=100, period_seconds=15),)
"""Defaults of autoscaling/v2."""


@dataclass(frozen=True, slots=True)
class Rules:
    """HPAScalingRules with the defaults filled in."""

    window_seconds: float
    policies: tuple[ScalingPolicy, ...]
    select_policy: str = "Max"


UP_RULES: Final = Rules(0.0, UP_POLICIES)
DOWN_RULES: Final = Rules(300.0, DOWN_POLICIES)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a decision may do, and from when on it believes something."""

    min_replicas: int = 1
    max_replicas: int = 1
    scale_up: Rules = UP_RULES
    scale_down: Rules = DOWN_RULES
    target_ratio: float | None = None
    """Share of requests that must be good; None: no SLO target is set."""
    max_concurrent_requests: int = 256
    """Per replica."""
    pending_seconds: float = DEFAULT_PENDING_SECONDS
    """Until then replicas that are not ready count as supply."""
    lead_seconds: float = DEFAULT_PENDING_SECONDS / 2
    """How long a new replica takes to serve, as far as is known."""
    capacity_key: str = ""
    """Changes when what was learned about a replica's capacity no longer holds."""
    headroom: float = 0.85
    """Share of a replica's capacity that is planned with."""
    down_margin: float = 0.8
    """Fewer replicas must stay below this share of what would raise them again: more than noise
    of 10 % either way can bridge (1.1 / 0.9 < 1 / 0.8)."""
    min_samples: float = 20.0
    """Fewer requests than that say nothing about a percentage."""
    stale_seconds: float = 30.0
    """An older sample says nothing."""
    queue_seconds: float = 4.0
    """A queue shorter than what is in flight must have stood that long."""
    saturated_seconds: float = 10.0
    """All endpoints must have been saturated that long."""


def policy_of(spec: Spec, cold_start_seconds: float | None) -> Policy:
    """The policy that a FastGenDeployment asks for."""
    scaling = spec.scaling
    lead = max(SHORT_WINDOW_SECONDS, cold_start_seconds or DEFAULT_PENDING_SECONDS / 2)
    key = msgspec.json.encode((spec.model, spec.engine, spec.resources, spec.image, spec.slo))
    return Policy(
        min_replicas=max(1, scaling.min_replicas),
        max_replicas=max(1, scaling.min_replicas, scaling.max_replicas),
        scale_up=_rules(scaling.behavior.scale_up, UP_RULES),
        scale_down=_rules(scaling.behavior.scale_down, DOWN_RULES),
        target_ratio=target_ratio(spec.slo),
        max_concurrent_requests=spec.engine.max_concurrent_requests,
        pending_seconds=2 * lead,
        lead_seconds=lead,
        capacity_key=key.decode(),
    )


def target_ratio(slo: SLO) -> float | None:
    """The share of good requests that is asked for; None without any target or a readable share."""
    if not (slo.time_to_first_token or slo.time_per_output_token or slo.token_gap):
        return None
    try:
        return float(Decimal(slo.target_percent) / 100)
    except InvalidOperation:
        return None


def _rules(asked: ScalingRules, default: Rules) -> Rules:
    window = asked.stabilization_window_seconds
    return Rules(
        window_seconds=default.window_seconds if window is None else float(window),
        policies=asked.policies or default.policies,
        select_policy=asked.select_policy,
    )
