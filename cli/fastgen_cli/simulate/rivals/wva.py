"""llm-d's Workload Variant Autoscaler: the saturation rule and the token-based one.

Source: llm-d/llm-d-workload-variant-autoscaler docs/saturation-analyzer.md,
docs/saturation-scaling-config.md and internal/engines/analyzers/saturation_v2/analyzer.go. It
analyses each 60 s and publishes an absolute number, which an HPA of type AverageValue carries out;
the HPA's tolerance, which would swallow single steps from ten replicas on, is left out here.
"""

from dataclasses import dataclass, replace
from math import ceil, floor
from statistics import median
from typing import Final

from fastgen_cli.simulate.rivals.hpa import DEFAULTS, NEW, Behavior, HpaMemory, paced
from fastgen_cli.simulate.scaler import Observation, PodReading, Traffic

ANALYSIS_SECONDS: Final = 60.0
HISTORY: Final = 10
"""Observations of compute-bound capacity that its mean is taken over."""
TRAFFIC_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Saturation:
    """Version 1: spare capacity by KV cache and queue, in steps of one."""

    kv_threshold: float = 0.80
    queue_threshold: float = 5.0
    kv_spare: float = 0.10
    queue_spare: float = 3.0
    behavior: Behavior = DEFAULTS


@dataclass(frozen=True, slots=True)
class WvaMemory:
    """wanted: what was published last; None before the first analysis."""

    hpa: HpaMemory = NEW
    wanted: int | None = None
    analysed_at: float | None = None
    observed: tuple[float, ...] = ()
    """Tokens in use of replicas whose queue was saturated."""


def by_saturation(seen: Observation, rule: Saturation, memory: WvaMemory) -> tuple[int, WvaMemory]:
    """Without metrics the last number stays published."""
    if _is_due(memory, seen.now):
        pods = seen.scraped()
        wanted = memory.wanted
        if pods:
            wanted = saturation_target(pods, seen.replicas, seen.ready, rule)
        memory = replace(memory, wanted=wanted, analysed_at=seen.now)
    return _carried_out(seen, rule.behavior, memory)


def saturation_target(
    pods: tuple[PodReading, ...], replicas: int, ready: int, rule: Saturation
) -> int:
    """One more, one fewer, or as many; variants with pending pods are left alone."""
    if ready < replicas:
        return replicas
    free = [
        pod
        for pod in pods
        if pod.kv_peak < rule.kv_threshold and pod.waiting_peak < rule.queue_threshold
    ]
    if not free:
        return replicas + 1
    kv, queue = sum(pod.kv_peak for pod in free), sum(pod.waiting_peak for pod in free)

    def spare(count: int) -> tuple[float, float]:
        return rule.kv_threshold - kv / count, rule.queue_threshold - queue / count

    now = spare(len(free))
    if now[0] < rule.kv_spare or now[1] < rule.queue_spare:
        return replicas + 1
    if len(free) < 2:
        return replicas
    after = spare(len(free) - 1)
    safe = after[0] >= rule.kv_spare and after[1] >= rule.queue_spare
    return replicas - 1 if safe else replicas


@dataclass(frozen=True, slots=True)
class Tokens:
    """Version 2: tokens in use and waiting against the capacity of memory and of compute.

    kv_tokens, batched_tokens, max_requests: of a replica, from its arguments.
    """

    kv_tokens: float
    batched_tokens: float = 2048.0
    max_requests: float = 256.0
    kv_threshold: float = 0.80
    queue_threshold: float = 5.0
    scale_up_threshold: float = 0.85
    scale_down_boundary: float = 0.70
    behavior: Behavior = DEFAULTS


def by_tokens(seen: Observation, rule: Tokens, memory: WvaMemory) -> tuple[int, WvaMemory]:
    """Without metrics the last number stays published."""
    if _is_due(memory, seen.now):
        pods, traffic = seen.scraped(), seen.traffic(TRAFFIC_SECONDS)
        if pods and traffic is not None:
            full = [p.tokens_held for p in pods if p.waiting_peak >= rule.queue_threshold]
            observed = (*memory.observed, *(held for held in full if held > 0))[-HISTORY:]
            memory = replace(memory, observed=observed)
            wanted = tokens_target(pods, traffic, seen.replicas, seen.ready, rule, observed)
            memory = replace(memory, wanted=wanted)
        memory = replace(memory, analysed_at=seen.now)
    return _carried_out(seen, rule.behavior, memory)


def tokens_target(
    pods: tuple[PodReading, ...],
    traffic: Traffic,
    replicas: int,
    ready: int,
    rule: Tokens,
    observed: tuple[float, ...],
) -> int:
    """Required and spare capacity in tokens, as whole replicas."""
    prompt, output = traffic.prompt_tokens, traffic.output_tokens
    memory_bound = rule.kv_tokens * rule.kv_threshold
    derived = 0.0
    if output > 0:
        steady = rule.batched_tokens * output / (prompt + output)
        derived = min(steady, rule.max_requests) * (prompt + output / 2)
    mean = sum(observed) / len(observed) if observed else 0.0
    capacities = [
        min(
            memory_bound,
            (pod.tokens_held if pod.waiting_peak >= rule.queue_threshold else 0.0)
            or mean
            or derived
            or memory_bound,
        )
        for pod in pods
    ]
    each = median(capacities)
    demand = sum(pod.tokens_held + pod.waiting * prompt for pod in pods)
    required = demand / rule.scale_up_threshold - replicas * each
    if required > 0:
        return replicas + ceil(required / each)
    spare = ready * each - demand / rule.scale_down_boundary
    if spare > 0:
        return max(1, replicas - floor(spare / each))
    return replicas


def _is_due(memory: WvaMemory, now: float) -> bool:
    return memory.analysed_at is None or now - memory.analysed_at >= ANALYSIS_SECONDS


def _carried_out(seen: Observation, behavior: Behavior, memory: WvaMemory) -> tuple[int, WvaMemory]:
    wanted = seen.replicas if memory.wanted is None else max(1, memory.wanted)
    replicas, hpa = paced(wanted, seen.replicas, behavior, memory.hpa, seen.now)
    return replicas, replace(memory, hpa=hpa)
