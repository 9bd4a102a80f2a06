"""Ray Serve on ongoing requests.

Source: ray-project/ray doc/source/serve/advanced-guides/advanced-autoscaling.md and
python/ray/serve/autoscaling_policy.py. Replicas and handles tell their numbers themselves: no
Prometheus. Only the rule is taken: a replica here takes more than Ray's max_ongoing_requests of 5.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from fastgen_cli.simulate.scaler import Observation

LOOP_SECONDS: Final = 1.0
"""Ray decides each 0.1 s; its delays count decisions in a row, here each stands for ten."""


@dataclass(frozen=True, slots=True)
class OngoingRequests:
    """Ray's defaults."""

    target: float = 2.0
    look_back_seconds: float = 30.0
    upscale_delay_seconds: float = 30.0
    downscale_delay_seconds: float = 600.0
    factor: float = 1.0
    max_replicas: int = 16
    """Bounds are applied before the delays."""


@dataclass(frozen=True, slots=True)
class RayMemory:
    """counter: decisions in a row, up positive, down negative."""

    counter: int = 0


def by_ongoing_requests(
    seen: Observation, rule: OngoingRequests, memory: RayMemory
) -> tuple[int, RayMemory]:
    """The replicas that run, times the ratio of what they have to what they should have."""
    running, target = max(1, seen.ready), seen.replicas
    ratio = seen.concurrency(rule.look_back_seconds) / (rule.target * running)
    desired = running * ratio
    scaled = ceil(running + rule.factor * (desired - running))
    if ceil(desired) < running and scaled == running:
        scaled -= 1
    scaled = max(1, min(rule.max_replicas, scaled))
    counter = memory.counter
    if scaled > target:
        counter = max(0, counter) + 1
        if counter > int(rule.upscale_delay_seconds / LOOP_SECONDS):
            return scaled, RayMemory(0)
    elif scaled < target:
        counter = min(0, counter) - 1
        if counter < -int(rule.downscale_delay_seconds / LOOP_SECONDS):
            return scaled, RayMemory(0)
    else:
        counter = 0
    return target, RayMemory(counter)
