"""What decides how many replicas there should be, in a simulation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fastgen_api.spec import Spec
from fastgen_balancer.decision import Memory, start
from fastgen_balancer.leader import TICK_SECONDS
from fastgen_balancer.promql import Windows
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy, policy_of
from fastgen_balancer.signals import LocalSignals, MetricSignals, Signals, Unknown


@dataclass(frozen=True, slots=True)
class PodReading:
    """One ready replica, as somebody reads it; peaks are those of the last minute."""

    name: str
    running: float
    waiting: float
    owed_tokens: float
    kv_usage: float
    kv_peak: float
    waiting_peak: float
    tokens_held: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What came in a window. requests_per_second, and the means of prompts and answers."""

    requests_per_second: float
    prompt_tokens: float
    output_tokens: float


class Observation(Protocol):
    """What may be seen at one moment; a method costs only who asks.

    Those of Prometheus give None where Prometheus cannot be asked, and nothing where it has no
    series.
    """

    @property
    def now(self) -> float: ...
    @property
    def replicas(self) -> int:
        """What was asked for last."""
        ...

    @property
    def ready(self) -> int: ...
    @property
    def capacity_blocked(self) -> bool:
        """Whether a pod waits for a GPU: the condition CapacityBlocked."""
        ...

    def live(self) -> tuple[PodReading, ...]:
        """The ready replicas by their own word, Prometheus or not."""
        ...

    def scraped(self) -> tuple[PodReading, ...] | None:
        """The ready replicas by Prometheus' word."""
        ...

    def concurrency(self, seconds: float) -> float:
        """Mean of the requests that are anywhere in the system, without Prometheus."""
        ...

    def ttft(self, quantile: float, seconds: float) -> float | None:
        """Of the first tokens in the window, by Prometheus; None without any."""
        ...

    def traffic(self, seconds: float) -> Traffic | None:
        """By Prometheus."""
        ...

    def local(self) -> LocalSignals: ...
    def metrics(self, windows: Windows) -> MetricSignals | Unknown: ...


class Scaler(Protocol):
    """Decides each `interval_seconds`."""

    @property
    def interval_seconds(self) -> float: ...
    def decide(self, seen: Observation) -> int:
        """The replicas that there should be."""
        ...


@dataclass(slots=True)
class OwnScaler:
    """FastGen's: `recommend`, with the memory that its leader keeps; it begins as a new leader."""

    spec: Spec
    cold_start_seconds: float | None
    interval_seconds: float = TICK_SECONDS
    windows: Windows = field(default_factory=Windows)
    rules: dict[str, int] = field(default_factory=dict)
    """How often each rule gave the number that was changed to."""

    _memory: Memory | None = None
    _policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self._policy = policy_of(self.spec, self.cold_start_seconds)

    def decide(self, seen: Observation) -> int:
        if self._memory is None:
            self._memory = start(seen.replicas, seen.now)
        metrics = seen.metrics(self.windows)
        signals = Signals(seen.replicas, seen.local(), metrics, seen.capacity_blocked)
        decision, self._memory = recommend(signals, self._policy, self._memory, seen.now)
        if decision.replicas != seen.replicas:
            self.rules[decision.rule] = self.rules.get(decision.rule, 0) + 1
        return decision.replicas


@dataclass(slots=True)
class FixedScaler:
    """As many replicas as a plan says for each interval: a fixed fleet, and the oracle's."""

    plan: Callable[[float], int] | int
    interval_seconds: float = 5.0

    def decide(self, seen: Observation) -> int:
        return self.plan if isinstance(self.plan, int) else self.plan(seen.now)
