"""The heartbeat: schedule, run, commit."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastgen_runtime.blocks import BlockPool
from fastgen_runtime.plan import Limits
from fastgen_runtime.request import Constraint, NewRequest, Refusal
from fastgen_runtime.scheduler import Committed, Scheduler
from fastgen_runtime.step import ChunkResult, Step


class StepRunner(Protocol):
    """Computes steps: `fastgen_runtime.runner.Runner`."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    def run(self, step: Step) -> Sequence[ChunkResult]:
        """What each chunk brought, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """How loaded an engine is. num_owed: tokens still to compute."""

    num_running: int
    num_waiting: int
    num_owed: int
    num_free_blocks: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Beat:
    """What one step did. step_seconds: schedule, run and commit together."""

    committed: Committed
    num_step_tokens: int
    step_seconds: float


class Engine:
    """A runner and the requests that it works on; knows neither processes nor clients."""

    def __init__(
        self, runner: StepRunner, limits: Limits, eos_token_ids: Collection[int] = ()
    ) -> None:
        self._runner = runner
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_size), limits, eos_token_ids
        )

    @property
    def max_length(self) -> int:
        """Most tokens that a request may have, prompt and output."""
        return self._scheduler.max_length

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def add(self, new: NewRequest, constraint: Constraint | None = None) -> Refusal | None:
        """Takes a request, or says why not; constraint: what its grammar allows."""
        return self._scheduler.add(new, constraint)

    def abort(self, request_id: str) -> None:
        """Frees a request's blocks; it is in no later step."""
        self._scheduler.abort(request_id)

    def step(self) -> Beat:
        """Computes one step of what the requests owe."""
        begun = time.perf_counter()
        step = self._scheduler.schedule()
        results = self._runner.run(step) if step.chunks else ()
        committed = self._scheduler.commit(step, results)
        return Beat(committed, step.num_tokens, time.perf_counter() - begun)

    def load(self) -> Load:
        scheduler = self._scheduler
        return Load(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_owed=scheduler.num_owed,
            num_free_blocks=scheduler.blocks.num_free,
            num_preemptions=scheduler.num_preemptions,
        )

    def check(self) -> None:
        """Raises BlocksCorruptedError when the books do not balance; for tests and idle times."""
        self._scheduler.check()
