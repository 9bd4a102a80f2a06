"""A simulated replica: the engine's own scheduler, with a clock in place of a device.

Steps in which nothing happens but one token for each running answer are taken together: no answer
ends before the last of them, nobody is let in, and there are blocks for all of them. Their times
are the sums that single steps would give; `fast_forward=False` has the scheduler plan each step.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fastgen_api.spec import BudgetMode
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.run import Run, ends_of, steps_with_blocks
from fastgen_runtime.engine.blocks import BlockPool, blocks_for
from fastgen_runtime.engine.budget import Budget, Pace, choose_budget
from fastgen_runtime.engine.chunk import make_chunk
from fastgen_runtime.engine.latency import shape_of
from fastgen_runtime.engine.outlook import Outlook
from fastgen_runtime.engine.request import NewRequest, Request
from fastgen_runtime.engine.scheduler import Scheduled, Scheduler
from fastgen_runtime.engine.step import ChunkResult, Sampling, Step
from fastgen_runtime.engine.work import Work, Workload

END: Final = 1
"""The token that ends an answer; all others are 0."""
_TOKEN: Final = ChunkResult(0)
_LAST_TOKEN: Final = ChunkResult(END)
_NO_TOKEN: Final = ChunkResult()
_GREEDY: Final = Sampling(temperature=0.0)
_MOST_STEPS: Final = 64
"""Taken together at most: an arrival cuts most runs short."""


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
        self._workload = Workload(512)
        self._inbox: list[Call] = []
        self._scheduled: Scheduled | None = None
        self._run: Run | None = None

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
    def work(self) -> Work:
        return self._workload.total(self.num_owed, self.profile.cost, self._pace)

    def _note_decode(self, requests: Sequence[Request], steps: int) -> None:
        cost, count = self.profile.cost, len(requests)
        attended = steps * sum(r.num_computed for r in requests) + count * steps * (steps + 1) / 2
        own = steps * count * (cost.per_token + cost.per_request) + cost.per_attended * attended
        self._workload.decode(own, cost, self._pace)

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
        run = self._run
        if run is not None:
            del run.ends[run.done + 1 :]
            self.ends_at = run.ends[-1]

    def settle(self, now: float) -> None:
        """Notes the steps of a run that have ended, so that what others read is true."""
        run = self._run
        if run is None:
            return
        # The last step may end answers, which is an event of its own.
        self._note_steps(run, min(run.ended_by(now), len(run.ends) - 1 - run.done))

    def finish_step(self) -> None:
        """What is under way has ended, at `ends_at`; begins the next step."""
        assert self.ends_at is not None
        now, self.ends_at = self.ends_at, None
        if self._run is not None:
            run, self._run = self._run, None
            self._note_steps(run, len(run.ends) - 1 - run.done)
            self._note_last_step(now)
        elif self._scheduled is not None:
            step, self._scheduled = self._scheduled.step, None
            self.num_steps += 1
            self._commit(step, now)
        self._begin(now)

    def _note_steps(self, run: Run, steps: int) -> None:
        """Each running answer has got `steps` more tokens."""
        if steps < 1:
            return
        first, end = run.ends[run.done], run.ends[run.done + steps - 1]
        # Contexts grow, so of steps in a row the last one takes longest.
        last = end - run.ends[run.done + steps - 2] if steps > 1 else 0.0
        run.done += steps
        running = self._scheduler.running
        self._note_decode(running, steps)
        self._give_tokens(running, steps)
        for request in running:
            times = self.calls[request.request_id].timings.choices[0]
            assert times.last is not None
            gap = first - times.last
            if gap > times.longest_gap or last > times.longest_gap:
                times.longest_gap = max(gap, last)
            times.last = end
            times.count += steps
        self.num_output_tokens += steps * len(running)
        self.num_steps += steps

    def _give_tokens(self, requests: Sequence[Request], steps: int) -> None:
        self._give_blocks(requests, steps)
        zeros = [0] * steps
        for request in requests:
            request.token_ids += zeros
            request.num_computed += steps
            if request.num_computed > request.num_counted:
                request.num_counted = request.num_computed

    def _give_blocks(self, requests: Sequence[Request], steps: int) -> None:
        """Blocks for `steps` more tokens of each; there are enough of them."""
        blocks = self._scheduler.blocks
        size = blocks.block_size
        for request in requests:
            if request.num_computed + steps > size * len(request.block_ids):
                missing = blocks_for(request.num_computed + steps, size) - len(request.block_ids)
                reserved = blocks.reserve(missing)
                assert reserved is not None, "a run of steps takes no more blocks than are free"
                request.block_ids += reserved

    def _note_last_step(self, now: float) -> None:
        """One more step of a run, in which answers may end: those the scheduler sees to."""
        ending: list[Request] = []
        going: list[Request] = []
        for request in self._scheduler.running:
            left = self.calls[request.request_id].output_tokens - request.num_output_tokens
            (ending if left == 1 else going).append(request)
        self._note_decode(going, 1)
        self._give_tokens(going, 1)
        for request in going:
            self.calls[request.request_id].timings.choices[0].note(now)
        self.num_output_tokens += len(going)
        self.num_steps += 1
        if ending:
            self._give_blocks(ending, 1)
            chunks = tuple(make_chunk(request, 1, (END,)) for request in ending)
            self._commit(Step(chunks), now)

    def _begin(self, now: float) -> None:
        for call in self._inbox:
            self._add(call, now)
        self._inbox.clear()
        scheduler = self._scheduler
        if not scheduler.running and not scheduler.waiting:
            return
        steps = self._unchanged_steps(now)
        if steps:
            self._run = Run(ends_of(scheduler.running, self.profile.cost, now, steps))
            self.ends_at = self._run.ends[-1]
            return
        scheduled = scheduler.schedule(now, self._budget(now))
        self.num_planned_steps += 1
        self._scheduled = scheduled
        self.ends_at = now + self.profile.cost.seconds(shape_of(scheduled.step))
        # Whoever waits now is let in by no later step either, until an answer ends.

    def _unchanged_steps(self, now: float) -> int:
        """How many steps only add a token to each answer, up to the one that ends the first."""
        running = self._scheduler.running
        if not self._fast_forward or not running:
            return 0
        waiting = self._scheduler.waiting
        steps = _MOST_STEPS
        if waiting and len(running) < self._limits.max_running:
            # Running answers come nearer to their ends, so memory for one that waits may be
            # foreseen at any step, and who waits first may become late; a place becomes free only
            # when an answer ends.
            self._scheduler.sort_waiting(self._budget(now).cost, now)
            if self._is_foreseen(waiting[0]):
                return 0
            steps = 1
        for request in running:
            if request.first_token_at is None or request.num_owed != 1:
                return 0
            left = self.calls[request.request_id].output_tokens - request.num_output_tokens
            steps = min(steps, left)
        return steps_with_blocks(running, self._scheduler.blocks, steps)

    def _is_foreseen(self, request: Request) -> bool:
        """Whether the scheduler would let a waiting request in: where nothing is shared, memory
        alone decides it."""
        pool, history = self._scheduler.blocks, self._scheduler._history
        held = [(one, 0) for one in self._scheduler.running]
        outlook = Outlook(held, history, pool.block_size)
        return outlook.fits(request, 0, 0, pool.num_blocks)

    def _add(self, call: Call, now: float) -> None:
        new = NewRequest(
            call.id,
            bytes(call.prompt_tokens),
            call.max_tokens or self._scheduler.max_length - call.prompt_tokens,
            _GREEDY,
            arrived=call.timings.arrived,
        )
        due = self._pace.due(call.arrived, call.prompt_tokens)
        late_at = self._pace.late_at(call.arrived, call.prompt_tokens)
        refusal = self._scheduler.add(new, due=due, late_at=late_at)
        if refusal is not None:
            raise RuntimeError(f"a request that the picker sent was refused: {refusal.message}")
        self._workload.arrive(self._scheduler.asked(call.id), self.profile.cost, self._pace)

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

    def _commit(self, step: Step, now: float) -> None:
        results = []
        self._workload.step(step, self.profile.cost, self._pace)
        for chunk in step.chunks:
            if chunk.sampling is None:
                results.append(_NO_TOKEN)
                continue
            call = self.calls[chunk.request_id]
            is_last = call.timings.choices[0].count + 1 >= call.output_tokens
            results.append(_LAST_TOKEN if is_last else _TOKEN)
        committed = self._scheduler.commit(step, results, now)
        self.num_prompt_tokens += committed.num_prompt_tokens
        self.num_output_tokens += committed.num_output_tokens
        for token in committed.tokens:
            call = self.calls[token.request_id]
            call.timings.note_token(now)
            if token.finish is not None:
                del self.calls[token.request_id]
                self._on_end(call, now)

    def check(self) -> None:
        """Raises BlocksCorruptedError unless the scheduler's books balance."""
        self._scheduler.check()
