"""How many replicas are planned for a demand."""

from math import ceil
from typing import Final

from fastgen_balancer.decision import Sight
from fastgen_balancer.scaling_policy import Policy

MOST_NEEDED: Final = 1_000_000


def wanted_for(demand: float, replicas: int, sight: Sight, policy: Policy) -> int:
    """Replicas for a demand; 0 where it is no more than so many are planned for."""
    each = sight.most * policy.headroom
    spare = max(0, replicas - sight.reserve)
    if demand <= 0 or demand <= spare * each * (1 + policy.up_tolerance):
        return 0
    return needed(demand, each) + sight.reserve


def needed(demand: float, each: float) -> int:
    """Replicas that carry the demand; MOST_NEEDED where one of them was seen to carry nothing."""
    if demand <= 0:
        return 0
    if demand >= each * MOST_NEEDED:
        return MOST_NEEDED
    # The last digits of a sum must not add a replica.
    return ceil(demand / each - 1e-9)
