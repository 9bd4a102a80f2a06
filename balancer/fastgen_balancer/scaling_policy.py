"""The rules that a decision keeps to: the user's bounds and behavior, and our constants."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Final

import msgspec

from fastgen_api.quantity import quantity
from fastgen_api.spec import SLO, Quantity, ScaleDownRules, ScalingRules, Spec
from fastgen_balancer.behavior import HPA_DOWN, HPA_UP

DEFAULT_PENDING_SECONDS: Final = 600.0
"""How long replicas may take to become ready while no cold start was measured."""
SHORT_WINDOW_SECONDS: Final = 30.0
LONG_WINDOW_SECONDS: Final = 300.0
LATEST_WINDOW_SECONDS: Final = 15.0
"""Three scrapes: enough to tell that much more arrives than before."""
DOWN_COLD_STARTS: Final = 3.0
"""Cold starts that a lower load must last for before replicas go: who comes back within that many
pays less for having stayed than the requests would for having to wait for it."""
SHORTEST_DOWN_SECONDS: Final = 180.0
"""A shorter window follows the chance of a steady load."""
LONGEST_DOWN_SECONDS: Final = HPA_DOWN.stabilization_window_seconds


@dataclass(frozen=True, slots=True)
class Policy:
    """What a decision may do, and from when on it believes something."""

    min_replicas: int = 1
    max_replicas: int = 1
    scale_up: ScalingRules = HPA_UP
    scale_down: ScalingRules = HPA_DOWN
    target_ratio: float | None = None
    """Share of requests that must be good; None: no SLO target is set."""
    max_concurrent_requests: int = 256
    """Per replica."""
    pending_seconds: float = DEFAULT_PENDING_SECONDS
    """Until then replicas that are not ready count as supply."""
    lead_seconds: float = DEFAULT_PENDING_SECONDS / 2
    """How long a new replica takes to serve, as far as is known."""
    idle_seconds: float = 900.0
    """How long nothing must arrive or run before the last replica goes, where none may be left."""
    up_tolerance: float = 0.0
    """Share by which the demand may exceed what the replicas are planned for."""
    down_tolerance: float = 0.0
    """Share by which the demand must fall below it."""
    capacity_key: str = ""
    """Changes when what was learned about a replica's capacity no longer holds."""
    headroom: float = 0.9
    """Share of a replica's capacity that is planned with. Demand is that of 30 s, so its peaks
    count, and what is beyond them waits for seconds."""
    down_margin: float = 0.9
    """Fewer replicas must stay below this share of what would raise them again: noise of 5 % either
    way does not bridge it (1.05 / 0.95 < 1 / 0.9), and faster noise than the stabilisation window
    has its highest demand in it."""
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
    up, down = scaling.behavior.scale_up, scaling.behavior.scale_down
    return Policy(
        min_replicas=scaling.min_replicas,
        max_replicas=max(1, scaling.min_replicas, scaling.max_replicas),
        scale_up=up,
        scale_down=down_rules(down, lead),
        target_ratio=target_ratio(spec.slo),
        max_concurrent_requests=spec.engine.max_concurrent_requests,
        pending_seconds=2 * lead,
        lead_seconds=lead,
        idle_seconds=float(scaling.scale_to_zero.idle_seconds),
        up_tolerance=_share(up.tolerance),
        down_tolerance=_share(down.tolerance),
        capacity_key=capacity_key(spec),
    )


def down_rules(rules: ScaleDownRules, cold_start_seconds: float) -> ScalingRules:
    """With the window that the cold start asks for where the user names none."""
    seconds = rules.stabilization_window_seconds
    if seconds is None:
        window = max(SHORTEST_DOWN_SECONDS, DOWN_COLD_STARTS * cold_start_seconds)
        seconds = round(min(LONGEST_DOWN_SECONDS, window))
    return ScalingRules(seconds, rules.select_policy, rules.policies, rules.tolerance)


def capacity_key(spec: Spec) -> str:
    """Stands for the model, the GPU and the engine's configuration, and for the SLO: what changes
    how much a replica carries."""
    parts = (spec.model, spec.engine, spec.slo, spec.resources, spec.image, spec.node_selector,
             spec.affinity, spec.runtime_class_name)  # fmt: skip
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _share(tolerance: Quantity | None) -> float:
    return 0.0 if tolerance is None else float(quantity(tolerance) or 0)


def target_ratio(slo: SLO) -> float | None:
    """The share of good requests that is asked for; None without any target or a readable share."""
    if not (slo.time_to_first_token or slo.time_per_output_token or slo.token_gap):
        return None
    try:
        return float(Decimal(slo.target_percent) / 100)
    except InvalidOperation:
        return None
