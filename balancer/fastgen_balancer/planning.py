"""How many replicas are planned for a demand."""

from math import ceil, sqrt
from typing import Final

from fastgen_balancer.decision import Sight
from fastgen_balancer.scaling_policy import SHORT_WINDOW_SECONDS, Policy

MOST_NEEDED: Final = 1_000_000


def wanted_for(demand: float, replicas: int, sight: Sight, policy: Policy) -> int:
    """Replicas for a demand; 0 where it is no more than so many are planned for."""
    room = planned(demand, sight, policy)
    spare = max(0, replicas - sight.reserve)
    if demand <= 0 or room <= spare * sight.most * (1 + policy.up_tolerance):
        return 0
    return needed(room, sight.most) + sight.reserve


def planned(demand: float, sight: Sight, policy: Policy) -> float:
    """The capacity that is planned for a demand: by the headroom, or by chance if that is more.

    Poisson arrivals whose sizes are as uneven as an exponential's: the work of a window has the
    variance 2 · demand · request / window (Halfin and Whitt, Operations Research 29, 1981, for the
    square root).
    """
    spread = sqrt(2 * max(0.0, demand) * sight.request_work / SHORT_WINDOW_SECONDS)
    return max(demand / policy.headroom, demand + policy.chance * spread)


def needed(demand: float, each: float) -> int:
    """Replicas that carry the demand; MOST_NEEDED where one of them was seen to carry nothing."""
    if demand <= 0:
        return 0
    if demand >= each * MOST_NEEDED:
        return MOST_NEEDED
    # The last digits of a sum must not add a replica.
    return ceil(demand / each - 1e-9)
