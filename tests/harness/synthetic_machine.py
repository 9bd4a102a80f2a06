"""A machine whose step times are known, and a clock that only its steps move."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget, Pace, choose_budget
from fastgen_runtime.engine.latency import LatencyModel, StepCost, StepShape, shape_of
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import ChunkResult

GPU_LIKE = StepCost(base=0.008, per_token=6e-5, per_attended=4e-9, per_request=2e-5)
CPU_LIKE = StepCost(base=0.012, per_token=1.1e-3, per_attended=9e-8, per_request=3e-4)


@dataclass
class Machine:
    """slowness: of each step, by its number. noise: largest share that a step is off by."""

    cost: StepCost
    noise: float = 0.0
    slowness: Callable[[int], float] = lambda _: 1.0
    num_steps: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def seconds(self, shape: StepShape) -> float:
        self.num_steps += 1
        noise = 1 + self.noise * (2 * self.rng.random() - 1)
        return self.cost.seconds(shape) * self.slowness(self.num_steps) * noise


@dataclass
class Ran:
    """A step that was computed."""

    budget: Budget
    shape: StepShape
    num_prompt_tokens: int
    seconds: float
    owed_prompt: bool

    @property
    def is_paced(self) -> bool:
        """Whether running streams decided how large the step was."""
        return self.budget.seconds is not None and self.budget.least_prompt_tokens == 64


class Simulation:
    """An engine on a synthetic machine; requests come when the clock has reached their arrival."""

    def __init__(self, machine: Machine, limits: Limits, pace: Pace, num_blocks: int) -> None:
        self.machine, self.pace, self.limits = machine, pace, limits
        self.model = LatencyModel()
        self.scheduler = Scheduler(BlockPool(num_blocks, 64), limits)
        self.now = 0.0
        self.times: dict[str, list[float]] = {}
        self.steps: list[Ran] = []

    def run(self, news: Iterable[NewRequest]) -> None:
        """Until all have ended."""
        to_come = sorted(news, key=lambda new: new.arrived)
        while to_come or self.scheduler.running or self.scheduler.waiting:
            if not (self.scheduler.running or self.scheduler.waiting):
                self.now = max(self.now, to_come[0].arrived)
            while to_come and to_come[0].arrived <= self.now:
                assert self.scheduler.add(to_come.pop(0)) is None
            self.step()

    def step(self) -> None:
        running = self.scheduler.running
        budget = choose_budget(
            self.limits.budget_tokens, 64, running, self.pace, self.model.cost, self.now
        )
        owed = bool(self.scheduler.waiting) or any(r.num_owed > 1 for r in running)
        step = self.scheduler.schedule(self.now, budget).step
        shape = shape_of(step)
        seconds = self.machine.seconds(shape)
        self.now += seconds
        results = [ChunkResult(1 if chunk.sampling else None) for chunk in step.chunks]
        for token in self.scheduler.commit(step, results, self.now).tokens:
            self.times.setdefault(token.request_id, []).append(self.now)
        self.model.observe(shape, seconds)
        prompt = sum(len(chunk.token_ids) for chunk in step.chunks if len(chunk.token_ids) > 1)
        self.steps.append(Ran(budget, shape, prompt, seconds, owed))

    def paces(self) -> list[float]:
        """Seconds per token after the first, of each request that had more than one."""
        return [
            (times[-1] - times[0]) / (len(times) - 1)
            for times in self.times.values()
            if len(times) > 1
        ]
