"""NVIDIA Dynamo's planner for aggregated engines: load mode, and throughput mode.

Source: ai-dynamo/dynamo docs/design-docs/planner-design.md and docs/components/planner. Its
regressions of a step's time are taken as learnt: it is given the simulated replica's true cost.
SLAs are the means that its user sets; here they are the deployment's targets.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from fastgen_cli.simulate.scaler import Observation, PodReading, Traffic
from fastgen_runtime.engine.latency import StepCost, StepShape

LOAD_SECONDS: Final = 5.0
TRAFFIC_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Engine:
    """What the planner knows of an engine. batched_tokens: most of a step."""

    cost: StepCost
    batched_tokens: int
    max_requests: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load mode. sensitivity: 0.80, Dynamo's default."""

    engine: Engine
    ttft_seconds: float
    ttft_seconds_per_prompt_token: float
    itl_seconds: float
    sensitivity: float = 0.80


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """The traffic that was known last."""

    traffic: Traffic | None = None


def by_load(seen: Observation, rule: Load, memory: LoadMemory) -> tuple[int, LoadMemory]:
    """One more when all engines' estimates are above an SLA, one fewer when all are below their
    share of both; nothing while a change is under way. Engines tell their loads themselves."""
    traffic = seen.traffic(TRAFFIC_SECONDS) or memory.traffic
    pods = seen.live()
    if traffic is None or not pods or seen.ready != seen.replicas:
        return seen.replicas, LoadMemory(traffic)
    sla = rule.ttft_seconds + rule.ttft_seconds_per_prompt_token * traffic.prompt_tokens
    ttft = [estimated_ttft(pod, traffic, rule.engine) / sla for pod in pods]
    itl = [estimated_itl(pod, traffic, rule.engine) / rule.itl_seconds for pod in pods]
    step = 0
    if min(ttft) > 1 or min(itl) > 1:
        step = 1
    elif max(ttft) < rule.sensitivity and max(itl) < rule.sensitivity:
        step = -1
    return max(1, seen.replicas + step), LoadMemory(traffic)


def estimated_ttft(pod: PodReading, traffic: Traffic, engine: Engine) -> float:
    """Of a mean request that came now: what is queued and itself, chunk by chunk, each with the
    running requests' tokens beside it."""
    left = pod.owed_tokens + traffic.prompt_tokens
    room = max(1.0, engine.batched_tokens - pod.running)
    seconds = 0.0
    while left > 0:
        chunk = min(left, room)
        shape = StepShape(ceil(chunk + pod.running), 0, ceil(pod.running) + 1)
        attended = pod.tokens_held + chunk * traffic.prompt_tokens / 2
        seconds += engine.cost.seconds(shape) + engine.cost.per_attended * attended
        left -= chunk
    return seconds


def estimated_itl(pod: PodReading, traffic: Traffic, engine: Engine) -> float:
    """A step of all that runs and waits, with a mean share of prompts."""
    count = pod.running + pod.waiting
    return _step_seconds(count, traffic, engine)


def _step_seconds(count: float, traffic: Traffic, engine: Engine) -> float:
    """A step of `count` answers in a steady state: as many prompts begin as answers end."""
    begun = count / max(1.0, traffic.output_tokens)
    cost = engine.cost
    prompt = traffic.prompt_tokens
    tokens = count + begun * prompt
    attended = count * (prompt + traffic.output_tokens / 2) + begun * prompt * prompt / 2
    return (
        cost.base
        + cost.per_token * tokens
        + cost.per_request * (count + begun)
        + cost.per_attended * attended
    )


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput mode with the constant predictor. interval_seconds: 180, Dynamo's default."""

    engine: Engine
    itl_seconds: float
    interval_seconds: float = 180.0


@dataclass(frozen=True, slots=True)
class ThroughputMemory:
    decided_at: float | None = None


def by_throughput(
    seen: Observation, rule: Throughput, memory: ThroughputMemory
) -> tuple[int, ThroughputMemory]:
    """The next interval's traffic is the last one's; replicas are what it takes of engines."""
    traffic = seen.traffic(rule.interval_seconds)
    if traffic is None or traffic.prompt_tokens <= 0 or traffic.output_tokens <= 0:
        return seen.replicas, memory
    rate = engine_rate(traffic, rule.engine, rule.itl_seconds)
    return max(1, ceil(traffic.requests_per_second / rate)), ThroughputMemory(seen.now)


def engine_rate(traffic: Traffic, engine: Engine, itl_seconds: float) -> float:
    """Requests per second that an engine serves inside the SLA of ITL, in a steady state."""
    context = traffic.prompt_tokens + traffic.output_tokens
    most = max(1, min(engine.max_requests, int(engine.kv_tokens / context)))
    count = 1
    while count < most:
        begun = (count + 1) / traffic.output_tokens * traffic.prompt_tokens
        slow = _step_seconds(count + 1, traffic, engine) > itl_seconds
        if slow or begun + count + 1 > engine.batched_tokens:
            break
        count += 1
    return count / (traffic.output_tokens * _step_seconds(count, traffic, engine))
