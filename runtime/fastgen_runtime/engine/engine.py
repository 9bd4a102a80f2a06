"""The heartbeat: schedule, run, commit."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastgen_api.spec import BudgetMode, most_step_tokens
from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget, Pace, choose_budget
from fastgen_runtime.engine.latency import LatencyModel, shape_of
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import Constraint, NewRequest, Refusal
from fastgen_runtime.engine.scheduler import Committed, Scheduler
from fastgen_runtime.engine.step import ChunkResult, Step
from fastgen_runtime.engine.work import NO_WORK, Work, Workload


class StepRunner(Protocol):
    """Computes steps: `fastgen_runtime.device.runner.Runner`."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    def run(self, step: Step) -> Sequence[ChunkResult]:
        """What each chunk brought, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """How loaded an engine is. num_owed: tokens still to compute. work: in engine-seconds."""

    num_running: int
    num_waiting: int
    num_owed: int
    num_free_blocks: int
    num_preemptions: int
    work: Work = NO_WORK


@dataclass(frozen=True, slots=True)
class Beat:
    """What one step did. step_seconds: schedule, run and commit together.

    predicted_seconds, budget_tokens, num_cached_tokens: see `channel.Report`. expired: requests
    whose deadline has passed; they are gone.
    """

    committed: Committed
    num_step_tokens: int
    step_seconds: float
    predicted_seconds: float | None = None
    budget_tokens: int = 0
    num_cached_tokens: int = 0
    expired: tuple[str, ...] = ()


class Engine:
    """A runner and the requests that it works on; knows neither processes nor clients."""

    def __init__(
        self, runner: StepRunner, limits: Limits, eos_token_ids: Collection[int] = ()
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_size), limits, eos_token_ids
        )
        self._latency = LatencyModel()
        self._pace = Pace()
        usual = most_step_tokens(BudgetMode.FIXED, None)
        self._workload = Workload(min(usual, limits.budget_tokens))

    @property
    def max_length(self) -> int:
        """Most tokens that a request may have, prompt and output."""
        return self._scheduler.max_length

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def add(self, new: NewRequest, constraint: Constraint | None = None) -> Refusal | None:
        """Takes a request, or says why not; constraint: what its grammar allows."""
        num_prompt = len(new.prompt_token_ids)
        came = new.arrived - new.waited
        due, late_at = self._pace.due(came, num_prompt), self._pace.late_at(came, num_prompt)
        refusal = self._scheduler.add(new, constraint, due, late_at)
        if refusal is None:
            asked = self._scheduler.asked(new.request_id)
            self._workload.arrive(asked, self._latency.cost, self._pace)
        return refusal

    def abort(self, request_id: str) -> None:
        """Frees a request's blocks; it is in no later step."""
        self._scheduler.abort(request_id)

    def set_pace(self, pace: Pace) -> None:
        """From the next step on running streams keep this pace, if the budget's mode is Auto, and
        new requests take turns by it."""
        self._pace = pace

    def step(self) -> Beat:
        """Computes one step of what the requests owe."""
        begun = time.monotonic()
        cost = self._latency.cost
        scheduled = self._scheduler.schedule(begun, self._budget(begun), cost)
        step = scheduled.step
        shape = shape_of(step)
        # Logits of a prompt's tokens are none of what a shape counts.
        is_usual = not any(chunk.targets for chunk in step.chunks)
        results = self._runner.run(step) if step.chunks else ()
        ended = time.monotonic()
        committed = self._scheduler.commit(step, results, ended)
        seconds = time.monotonic() - begun
        if is_usual:
            self._latency.observe(shape, seconds)
        self._workload.step(step, self._latency.cost, self._pace)
        return Beat(
            committed,
            shape.num_tokens,
            seconds,
            predicted_seconds=cost.seconds(shape) if cost and is_usual and step.chunks else None,
            budget_tokens=scheduled.budget_tokens,
            num_cached_tokens=scheduled.num_cached_tokens,
            expired=scheduled.expired,
        )

    def _budget(self, now: float) -> Budget:
        most = self._limits.budget_tokens
        if self._limits.budget_mode is BudgetMode.FIXED:
            return Budget(most)
        scheduler = self._scheduler
        return choose_budget(
            most,
            scheduler.blocks.block_size,
            scheduler.running,
            self._pace,
            self._latency.cost,
            now,
        )

    def load(self) -> Load:
        scheduler = self._scheduler
        return Load(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_owed=scheduler.num_owed,
            num_free_blocks=scheduler.blocks.num_free,
            num_preemptions=scheduler.num_preemptions,
            work=self._workload.total(scheduler.num_owed, self._latency.cost, self._pace),
        )

    def check(self) -> None:
        """Raises BlocksCorruptedError when the books do not balance; for tests and idle times."""
        self._scheduler.check()
