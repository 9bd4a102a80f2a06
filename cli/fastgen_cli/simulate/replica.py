"""A simulated replica: the engine's own scheduler, with a clock in place of a device.

Steps in which nothing happens but one token for each running answer are taken together: no answer
ends in them, nobody is let in, and there are blocks for all of them. Their times are a sum in
closed form, so they are exact up to rounding; `fast_forward=False` computes each by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

from fastgen_api.spec import BudgetMode
from fastgen_cli.simulate.profile import Profile
from fastgen_runtime.engine.blocks import BlockPool, blocks_for
from fastgen_runtime.engine.budget import Budget, Pace, choose_budget
from fastgen_runtime.engine.latency import shape_of
from fastgen_runtime.engine.request import NewRequest, Request
from fastgen_runtime.engine.scheduler import Scheduled, Scheduler
from fastgen_runtime.engine.step import ChunkResult, Sampling
from fastgen_runtime.front.goodness import Timings

END: Final = 1
"""The token that ends an answer; all others are 0."""
_TOKEN: Final = ChunkResult(0)
_LAST_TOKEN: Final = ChunkResult(END)
_NO_TOKEN: Final = ChunkResult()
_GREEDY: Final = Sampling(temperature=0.0)
_MOST_STEPS: Final = 1 << 20


@dataclass(slots=True, eq=False)
class Call:
    """A client's request on its way. timings: as the replica that answers it notes them."""

    id: str
    arrived: float
    prompt_tokens: int
    output_tokens: int
    timings: Timings
    retried: bool = False


@dataclass(slots=True)
class _Run:
    """Unchanged steps under way: the first one took from `begun` to `begun + first` seconds, each
    takes `growth` longer than the one before; `left` of them are to be done."""

    begun: float
    first: float
    growth: float
    left: int

    def end_of(self, steps: int) -> float:
        return self.begun + steps * self.first + self.growth * (steps * (steps - 1) / 2)

    def done_by(self, now: float) -> int:
        """Steps that have ended by `now`."""
        spent = now - self.begun
        if spent < self.first:
            return 0
        if self.growth > 0:
            linear = self.first - self.growth / 2
            root = sqrt(linear * linear + 2 * self.growth * spent)
            steps = int((root - linear) / self.growth)
        else:
            steps = int(spent / self.first)
        while steps < self.left and self.end_of(steps + 1) <= now:
            steps += 1
        while steps > 0 and self.end_of(steps) > now:
            steps -= 1
        return min(steps, self.left)

    def skip(self, steps: int) -> None:
        self.begun = self.end_of(steps)
        self.first += self.growth * steps
        self.left -= steps


class Replica:
    """Invariant: while it has work, a step or a run of steps is under way and `ends_at` is set."""

    def __init__(
        self,
        name: str,
        profile: Profile,
        pace: Pace,
        on_end: Callable[[Call, float], None],
        *,
        fast_forward: bool = True,
    ) -> None:
        self.name = name
        self.profile = profile
        self.ends_at: float | None = None
        """When the step, or the last of the steps under way, ends."""
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_steps = 0
        self.num_planned_steps = 0
        """Steps that the scheduler planned; the others were taken together."""
        self.calls: dict[str, Call] = {}
        self._pace = pace
        self._on_end = on_end
        self._fast_forward = fast_forward
        self._limits = profile.limits
        self._scheduler = Scheduler(
            BlockPool(profile.num_blocks, profile.block_size), self._limits, (END,)
        )
        self._inbox: list[Call] = []
        self._scheduled: Scheduled | None = None
        self._run: _Run | None = None
        self._is_settled = False
        """The last planned step gave one token to each answer, and changed nothing else."""

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._inbox)

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.num_preemptions

    @property
    def num_owed(self) -> int:
        """Tokens to compute before the next ones of all requests."""
        return self._scheduler.num_owed + sum(call.prompt_tokens for call in self._inbox)

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.blocks.num_free

    @property
    def num_tokens_held(self) -> int:
        """Tokens in the KV cache."""
        return sum(request.num_computed for request in self._scheduler.running)

    @property
    def kv_usage(self) -> float:
        return 1 - self.num_free_blocks / self.profile.num_blocks

    def take(self, call: Call, now: float) -> None:
        """Takes a request; it is looked at when the step under way ends."""
        self.calls[call.id] = call
        self._inbox.append(call)
        if self.ends_at is None:
            self._begin(now)
        elif self._run is not None:
            self._cut(now)

    def _cut(self, now: float) -> None:
        """Ends a run of steps with the one that is under way."""
        self.settle(now)
        if self._run is not None:
            self._run.left = 1
            self.ends_at = self._run.end_of(1)

    def settle(self, now: float) -> None:
        """Notes the steps of a run that have ended, so that what others read is true."""
        run = self._run
        if run is None:
            return
        steps = min(run.done_by(now), run.left - 1)
        if steps:
            self._note_steps(run, steps)
            run.skip(steps)

    def finish_step(self) -> None:
        """What is under way has ended, at `ends_at`; begins the next step."""
        assert self.ends_at is not None
        now, self.ends_at = self.ends_at, None
        if self._run is not None:
            run, self._run = self._run, None
            self._note_steps(run, run.left)
        elif self._scheduled is not None:
            self._commit(self._scheduled, now)
            self._scheduled = None
        self._begin(now)

    def _note_steps(self, run: _Run, steps: int) -> None:
        """Each running answer has got `steps` more tokens."""
        first, last, end = run.end_of(1), run.first + run.growth * (steps - 1), run.end_of(steps)
        blocks, zeros = self._scheduler.blocks, [0] * steps
        for request in self._scheduler.running:
            request.token_ids += zeros
            request.num_computed += steps
            request.num_counted = max(request.num_counted, request.num_computed)
            missing = blocks_for(request.num_computed, blocks.block_size) - len(request.block_ids)
            if missing > 0:
                reserved = blocks.reserve(missing)
                assert reserved is not None, "a run of steps takes no more blocks than are free"
                request.block_ids += reserved
            times = self.calls[request.request_id].timings.choices[0]
            assert times.last is not None
            times.longest_gap = max(times.longest_gap, first - times.last, last)
            times.last = end
            times.count += steps
        self.num_output_tokens += steps * self.num_running
        self.num_steps += steps

    def _begin(self, now: float) -> None:
        for call in self._inbox:
            self._add(call, now)
            self._is_settled = False
        self._inbox.clear()
        scheduler = self._scheduler
        if not scheduler.running and not scheduler.waiting:
            return
        steps = self._unchanged_steps()
        if steps >= 1:
            cost, running = self.profile.cost, scheduler.running
            count = len(running)
            attended = sum(request.num_computed for request in running) + count
            first = cost.base + count * (cost.per_token + cost.per_request)
            first += cost.per_attended * attended
            self._run = _Run(now, first, cost.per_attended * count, steps)
            self.ends_at = self._run.end_of(steps)
            return
        preemptions = scheduler.num_preemptions
        scheduled = scheduler.schedule(now, self._budget(now))
        self.num_planned_steps += 1
        self._scheduled = scheduled
        self.ends_at = now + self.profile.cost.seconds(shape_of(scheduled.step))
        # Whoever waits now is let in by no later step either, until an answer ends.
        self._is_settled = preemptions == scheduler.num_preemptions and all(
            c.sampling and len(c.token_ids) == 1 for c in scheduled.step.chunks
        )

    def _unchanged_steps(self) -> int:
        """How many steps will only add a token to each answer, the last tokens left out."""
        running = self._scheduler.running
        if not self._fast_forward or not running:
            return 0
        if self._scheduler.waiting and not self._is_settled:
            return 0
        steps = _MOST_STEPS
        for request in running:
            if request.first_token_at is None or request.num_owed != 1:
                return 0
            left = self.calls[request.request_id].output_tokens - request.num_output_tokens
            steps = min(steps, left - 1)
        return steps if steps < 1 else self._with_blocks(steps)

    def _with_blocks(self, steps: int) -> int:
        """The most steps, up to `steps`, for which there are blocks."""
        pool = self._scheduler.blocks
        requests: list[Request] = list(self._scheduler.running)

        def missing(count: int) -> int:
            return sum(
                max(0, blocks_for(r.num_computed + count, pool.block_size) - len(r.block_ids))
                for r in requests
            )

        if len(requests) * (steps // pool.block_size + 1) <= pool.num_free:
            return steps
        low, high = 0, steps
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if missing(middle) <= pool.num_free else (low, middle - 1)
        return low

    def _add(self, call: Call, now: float) -> None:
        new = NewRequest(
            call.id,
            bytes(call.prompt_tokens),
            # A client that names no limit gets the room that is left.
            self._scheduler.max_length - call.prompt_tokens,
            _GREEDY,
            arrived=call.timings.arrived,
        )
        due = self._pace.due(call.timings.arrived, call.prompt_tokens)
        refusal = self._scheduler.add(new, due=due)
        if refusal is not None:
            raise RuntimeError(f"a request that the picker sent was refused: {refusal.message}")

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
            self.profile.cost,
            now,
        )

    def _commit(self, scheduled: Scheduled, now: float) -> None:
        results = []
        for chunk in scheduled.step.chunks:
            if chunk.sampling is None:
                results.append(_NO_TOKEN)
                continue
            call = self.calls[chunk.request_id]
            is_last = call.timings.choices[0].count + 1 >= call.output_tokens
            results.append(_LAST_TOKEN if is_last else _TOKEN)
        committed = self._scheduler.commit(scheduled.step, results, now)
        self.num_steps += 1
        self.num_prompt_tokens += committed.num_prompt_tokens
        self.num_output_tokens += committed.num_output_tokens
        for token in committed.tokens:
            call = self.calls[token.request_id]
            call.timings.note_token(now)
            if token.finish is not None:
                self._is_settled = False
                del self.calls[token.request_id]
                self._on_end(call, now)

    def check(self) -> None:
        """Raises BlocksCorruptedError unless the scheduler's books balance."""
        self._scheduler.check()
