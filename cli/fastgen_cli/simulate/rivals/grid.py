"""The rivals by name: each with its published defaults, and the grid that it is tuned over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastgen_api.spec import SLO
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.rivals import dynamo, hpa, keda, knative, ray_serve, wva
from fastgen_cli.simulate.scaler import Observation, Scaler


@dataclass(frozen=True, slots=True)
class World:
    """What whoever sets up an autoscaler knows."""

    slo: SLO
    profile: Profile
    max_replicas: int

    @property
    def engine(self) -> dynamo.Engine:
        profile = self.profile
        return dynamo.Engine(
            profile.cost,
            profile.budget_tokens,
            profile.max_concurrent_requests,
            profile.num_blocks * profile.block_size,
        )

    @property
    def itl_seconds(self) -> float:
        """50 ms, Dynamo's default, without a target."""
        target = self.slo.time_per_output_token
        return target.milliseconds / 1e3 if target else 0.05

    @property
    def ttft_seconds(self) -> float:
        """500 ms, Dynamo's default, without a target."""
        target = self.slo.time_to_first_token
        return target.milliseconds / 1e3 if target else 0.5

    @property
    def ttft_seconds_per_prompt_token(self) -> float:
        target = self.slo.time_to_first_token
        return target.per_prompt_token_microseconds / 1e6 if target else 0.0


Decide = Callable[[Observation, Any, Any], tuple[int, Any]]


@dataclass(slots=True)
class RivalScaler:
    """Keeps a rival's memory between its decisions."""

    decide_with: Decide
    rule: Any
    memory: Any
    interval_seconds: float

    def decide(self, seen: Observation) -> int:
        replicas, self.memory = self.decide_with(seen, self.rule, self.memory)
        return replicas


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a grid, as it is written in tables."""

    text: str
    make: Callable[[World], Scaler]


@dataclass(frozen=True, slots=True)
class Rival:
    """published: its defaults. grid: what it is tuned over, the defaults not repeated."""

    name: str
    published: Setting
    grid: tuple[Setting, ...]


def _setting(
    text: str, decide: Decide, rule: Callable[[World], Any], memory: Any, interval: float
) -> Setting:
    return Setting(text, lambda world: RivalScaler(decide, rule(world), memory, interval))


def _running(target: float) -> Setting:
    rule = hpa.RunningRequests(target)
    return _setting(
        f"target {target:g}", hpa.by_running_requests, lambda _: rule, hpa.HpaMemory(),
        hpa.SYNC_SECONDS,
    )  # fmt: skip


def _latency(seconds: float) -> Setting:
    rule = hpa.LatencyRatio(seconds)
    return _setting(
        f"P95 TTFT {seconds:g} s", hpa.by_latency_ratio, lambda _: rule, hpa.HpaMemory(),
        hpa.SYNC_SECONDS,
    )  # fmt: skip


def _queue(threshold: float, fallback: int | None = None) -> Setting:
    rule = keda.QueueDepth(threshold, fallback is None, fallback)
    text = f"threshold {threshold:g}" + ("" if fallback is None else f", fallback {fallback}")
    return _setting(text, keda.by_queue_depth, lambda _: rule, keda.KedaMemory(), hpa.SYNC_SECONDS)


def _kpa(target: float) -> Setting:
    rule = knative.Concurrency(target)
    return _setting(
        f"concurrency {target:g}", knative.by_concurrency, lambda _: rule, knative.KpaMemory(),
        knative.TICK_SECONDS,
    )  # fmt: skip


def _ray(target: float) -> Setting:
    def rule(world: World) -> ray_serve.OngoingRequests:
        return ray_serve.OngoingRequests(target, max_replicas=world.max_replicas)

    return _setting(
        f"ongoing {target:g}", ray_serve.by_ongoing_requests, rule, ray_serve.RayMemory(),
        ray_serve.LOOP_SECONDS,
    )  # fmt: skip


def _saturation(kv_spare: float, queue_spare: float) -> Setting:
    rule = wva.Saturation(kv_spare=kv_spare, queue_spare=queue_spare)
    return _setting(
        f"spare KV {kv_spare:g}, queue {queue_spare:g}", wva.by_saturation, lambda _: rule,
        wva.WvaMemory(), hpa.SYNC_SECONDS,
    )  # fmt: skip


def _tokens(up: float, down: float) -> Setting:
    def rule(world: World) -> wva.Tokens:
        engine = world.engine
        return wva.Tokens(
            kv_tokens=engine.kv_tokens,
            batched_tokens=engine.batched_tokens,
            max_requests=engine.max_requests,
            scale_up_threshold=up,
            scale_down_boundary=down,
        )

    return _setting(
        f"up {up:g}, down {down:g}", wva.by_tokens, rule, wva.WvaMemory(), hpa.SYNC_SECONDS
    )


def _load(sensitivity: float, share: float = 1.0) -> Setting:
    """share: of the targets, as its SLAs."""

    def rule(world: World) -> dynamo.Load:
        return dynamo.Load(
            world.engine,
            share * world.ttft_seconds,
            share * world.ttft_seconds_per_prompt_token,
            share * world.itl_seconds,
            sensitivity,
        )

    return _setting(
        f"sensitivity {sensitivity:g}, SLA × {share:g}", dynamo.by_load, rule,
        dynamo.LoadMemory(), dynamo.LOAD_SECONDS,
    )  # fmt: skip


def _throughput(seconds: float, share: float = 1.0) -> Setting:
    def rule(world: World) -> dynamo.Throughput:
        return dynamo.Throughput(world.engine, share * world.itl_seconds, seconds)

    return _setting(
        f"each {seconds:g} s, SLA × {share:g}", dynamo.by_throughput, rule,
        dynamo.ThroughputMemory(), seconds,
    )  # fmt: skip


RIVALS: Final = (
    Rival("HPA, running requests", _running(5), tuple(map(_running, (8, 12, 18)))),
    Rival("HPA, latency ratio", _latency(0.5), tuple(map(_latency, (1.0, 2.0, 4.0)))),
    Rival("KEDA, queue depth", _queue(5), tuple(map(_queue, (1, 2, 10)))),
    Rival(
        "KEDA, with fallback",
        _queue(5, 6),
        (_queue(1, 6), _queue(2, 6), _queue(1, 10)),
    ),
    Rival("Knative KPA", _kpa(100), tuple(map(_kpa, (8, 12, 18)))),
    Rival("Ray Serve", _ray(2), tuple(map(_ray, (5, 8, 14)))),
    Rival(
        "WVA, saturation",
        _saturation(0.1, 3),
        (_saturation(0.2, 3), _saturation(0.35, 3), _saturation(0.5, 4)),
    ),
    Rival(
        "WVA, tokens",
        _tokens(0.85, 0.7),
        (_tokens(0.65, 0.5), _tokens(0.45, 0.35), _tokens(0.3, 0.2)),
    ),
    Rival(
        "Dynamo, load",
        _load(0.8),
        (_load(0.6), _load(0.8, 0.7), _load(0.6, 0.5)),
    ),
    Rival(
        "Dynamo, throughput",
        _throughput(180),
        (_throughput(60), _throughput(60, 0.8), _throughput(60, 0.65)),
    ),
)
"""The settings of each grid lie around what a replica of the comparison takes; the published one
is in every grid, too."""
