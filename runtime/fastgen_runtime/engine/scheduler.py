"""The requests of an engine: which wait, which run, and the blocks that they hold."""

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.chunk import make_chunk
from fastgen_runtime.engine.deadlines import Deadlines
from fastgen_runtime.engine.drafts import lookup_for, plan_drafts, taken
from fastgen_runtime.engine.holdings import Holdings
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.lateness import Lateness
from fastgen_runtime.engine.outlook import Forecast, LengthHistory
from fastgen_runtime.engine.plan import Admission, Limits, schedule
from fastgen_runtime.engine.request import (
    Constraint,
    NewRequest,
    NewToken,
    Refusal,
    RefusalKind,
    Request,
    Started,
    chain_of,
    finish_reason,
    turn_of,
)
from fastgen_runtime.engine.step import Chunk, ChunkResult, Step
from fastgen_runtime.engine.work import Asked


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step that is to be computed, and what came with it.

    expired: requests whose deadline has passed; they are gone. num_cached_tokens: prompt tokens
    that its new requests found in the cache. budget_tokens: the most that it could have had.
    """

    step: Step
    expired: tuple[str, ...] = ()
    num_cached_tokens: int = 0
    budget_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step brought. Tokens that were computed again after a preemption do not count, nor do
    prompt tokens that were in the cache.

    failed: requests that could not go on; they are gone. num_drafted, num_accepted: guessed tokens
    that were computed, and those of them that came.
    """

    tokens: tuple[NewToken, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    failed: tuple[tuple[str, Refusal], ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0


class Scheduler:
    """Requests and blocks; each request is waiting or running, and only running ones hold blocks.

    `schedule` and `commit` alternate; `add` and `abort` come between a commit and a schedule.
    """

    def __init__(
        self, blocks: BlockPool, limits: Limits, eos_token_ids: Collection[int] = ()
    ) -> None:
        self.blocks = blocks
        self.limits = limits
        self.num_preemptions = 0
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests: dict[str, Request] = {}
        # Both in the order of `Request.order`.
        self._running: list[Request] = []
        self._waiting: list[Request] = []
        self._arrivals = 0
        self._deadlines = Deadlines()
        self._lateness = Lateness()
        self._history = LengthHistory(limits.expected_output_tokens)
        self._forecast = Forecast(self._history)
        self._holdings = Holdings(blocks)

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def waiting(self) -> Sequence[Request]:
        return self._waiting

    @property
    def max_length(self) -> int:
        """Most tokens that a request may have, prompt and output."""
        return min(self.limits.max_length, self.blocks.num_blocks * self.blocks.block_size)

    @property
    def num_owed(self) -> int:
        """Tokens that all requests still have to compute before their next ones."""
        return sum(request.num_owed for request in self._requests.values())

    def add(
        self,
        new: NewRequest,
        constraint: Constraint | None = None,
        due: float = 0.0,
        late_at: float = inf,
    ) -> Refusal | None:
        """Takes a request, or says why not. due: when it should have its first token; late_at: from
        when on that misses its target."""
        num_prompt = len(new.prompt_token_ids)
        if new.request_id in self._requests:
            raise ValueError(f"request {new.request_id} is here already")
        if num_prompt < 1 or new.max_tokens < 1:
            raise ValueError("a request has at least one prompt token and one output token")
        if num_prompt + new.max_tokens > self.max_length:
            return Refusal(
                RefusalKind.TOO_LONG,
                f"{num_prompt} prompt tokens and {new.max_tokens} output tokens are more than "
                f"the {self.max_length} tokens that a request may have here",
            )
        if len(self._requests) >= self.limits.max_running + self.limits.max_waiting:
            return Refusal(
                RefusalKind.FULL,
                f"{len(self._running)} requests run and {len(self._waiting)} wait, "
                "which is all that this replica takes",
            )
        request = Request(
            new, self._arrivals, constraint, chain_of(new, self.limits.prefix_caching), due, late_at
        )
        request.lookup = lookup_for(request, self.limits.speculation)
        request.extend_digests(self.blocks.block_size)
        request.forecast = self._forecast.tokens(new.max_tokens)
        self._arrivals += 1
        self._requests[new.request_id] = request
        insort(self._waiting, request, key=turn_of)
        if new.deadline is not None:
            self._deadlines.add(new.deadline, request, self._requests)
        return None

    def asked(self, request_id: str) -> Asked:
        """What a request that has just been added asks for."""
        request = self._requests[request_id]
        most = request.num_matchable(self.blocks.block_size)
        num_cached = len(self.blocks.match(request.digests, most)) * self.blocks.block_size
        return Asked(request.num_prompt_tokens, num_cached, request.forecast)

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its blocks; an unknown one has ended already."""
        request = self._requests.get(request_id)
        if request is not None:
            self._forget(request)

    def sort_waiting(self, cost: StepCost, now: float) -> None:
        """Lets those that wait and may be in time pass those that no longer can."""
        self._lateness.sort(self._waiting, cost, now)

    def schedule(
        self, now: float, budget: Budget | None = None, cost: StepCost | None = None
    ) -> Scheduled:
        """The next step, its blocks reserved; without chunks when there is nothing to do.

        now: on `time.monotonic`'s clock. budget: None for all that the limits allow. cost: what
        guesses are weighed by; None: none are made.
        """
        expired = self._drop_expired(now)
        budget = budget or Budget(self.limits.budget_tokens)
        self.sort_waiting(budget.cost, now)
        plan = schedule(
            self._running,
            self._waiting,
            self.blocks,
            self.limits,
            budget,
            self._history,
            self._holdings.hits,
        )
        for request in plan.preempted:
            self._running.remove(request)
            self._lateness.preempted(request)
            insort(self._waiting, request, key=turn_of)
            self._holdings.release(request)
        self.num_preemptions += len(plan.preempted)
        num_cached = sum(self._admit(admission, now) for admission in plan.admitted)
        drafts = plan_drafts(plan, self.limits, budget, cost, self.blocks.block_size)
        step = Step(
            tuple(self._chunk(one, piece, drafts.get(one, ())) for one, piece in plan.pieces)
        )
        return Scheduled(step, expired, num_cached, plan.budget_tokens)

    def commit(self, step: Step, results: Sequence[ChunkResult], now: float) -> Committed:
        """Notes that `step` was computed; `results`: one per chunk."""
        tokens: list[NewToken] = []
        failed: list[tuple[str, Refusal]] = []
        num_prompt = num_drafted = num_accepted = 0
        for chunk, result in zip(step.chunks, results, strict=True):
            request = self._requests[chunk.request_id]
            if result.failed is not None:
                # Whatever went wrong may be in its blocks.
                self._holdings.spoil(request)
                self._forget(request)
                failed.append((request.request_id, Refusal(RefusalKind.FAILED, result.failed)))
                continue
            end = chunk.start + len(chunk.token_ids) - chunk.num_drafted
            num_prompt += self._note_computed(request, end)
            if (result.token_id is None) != (chunk.sampling is None):
                raise ValueError(f"request {chunk.request_id}: a token too many or too few")
            if len(result.prompt_logprobs) != len(chunk.targets):
                raise ValueError(f"request {chunk.request_id}: not all its prompt's probabilities")
            if chunk.targets:
                known = len(request.prompt_logprobs) - chunk.start
                request.prompt_logprobs += result.prompt_logprobs[known:]
            if result.token_id is not None:
                come = self._take_tokens(request, chunk, result, now)
                num_drafted += chunk.num_drafted
                num_accepted += len(come) - 1
                tokens += come
        return Committed(
            tuple(tokens), num_prompt, len(tokens), tuple(failed), num_drafted, num_accepted
        )

    def check(self) -> None:
        """Raises BlocksCorruptedError unless requests and pool agree about who holds what."""
        self._holdings.check(self._running)

    def _drop_expired(self, now: float) -> tuple[str, ...]:
        expired = self._deadlines.pop(now, self._requests)
        for request in expired:
            self._forget(request)
        return tuple(request.request_id for request in expired)

    def _admit(self, admission: Admission, now: float) -> int:
        """Lets a request in; how many of its prompt's tokens need not be computed for once."""
        request, block_ids = admission.request, admission.block_ids
        self._waiting.remove(request)
        self._lateness.admitted(request, self._waiting)
        insort(self._running, request, key=turn_of)
        self._holdings.begin(request, block_ids)
        num_cached = min(request.num_computed, request.num_prompt_tokens) - request.num_counted
        num_cached = max(0, num_cached)
        request.num_cached += num_cached
        request.num_counted = max(request.num_counted, request.num_computed)
        if request.queue_seconds is None:
            request.queue_seconds = max(0.0, now - request.new.arrived)
        return num_cached

    def _note_computed(self, request: Request, end: int) -> int:
        """Its tokens up to `end` are in the cache; how many of the prompt's for the first time."""
        num_prompt = 0
        request.num_computed = end
        if end > request.num_counted:
            num_prompt = max(0, min(end, request.num_prompt_tokens) - request.num_counted)
            request.num_counted = end
        self._holdings.publish(request)
        return num_prompt

    def _take_tokens(
        self, request: Request, chunk: Chunk, result: ChunkResult, now: float
    ) -> list[NewToken]:
        """The chunk's next token and those after guesses that were right, up to the last one."""
        come: list[NewToken] = []
        for token_id in taken(request, chunk, result):
            if come:  # the one before was guessed, and so has been computed
                self._note_computed(request, request.num_computed + 1)
            come.append(self._take_token(request, token_id, result, now))
            if come[-1].finish is not None:
                break
        return come

    def _take_token(
        self, request: Request, token_id: int, result: ChunkResult, now: float
    ) -> NewToken:
        started = None
        if request.first_token_at is None:
            request.first_token_at = now
            started = Started(
                request.queue_seconds or 0.0, request.num_cached, tuple(request.prompt_logprobs)
            )
            request.prompt_logprobs = []  # some kilobytes per token: not to be kept
        request.token_ids.append(token_id)
        if not len(request.token_ids) % self.blocks.block_size:
            request.extend_digests(self.blocks.block_size)
        finish = finish_reason(request, token_id, self._eos_token_ids)
        if finish is not None:
            self._forget(request)
        return NewToken(request.request_id, token_id, finish, result.logprobs, started)

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        # Which have blocks can be waiting no more, but one that runs may have got none yet.
        (self._running if request in self._running else self._waiting).remove(request)
        self._holdings.release(request)
        self._forecast.note(request.forecast, request.num_output_tokens)
        if request.num_output_tokens:
            self._history.note(request.num_output_tokens)

    def _chunk(self, request: Request, piece: int, drafted: Sequence[int]) -> Chunk:
        self._holdings.reserve(request, request.num_computed + piece)
        return make_chunk(request, piece, self._eos_token_ids, drafted)
