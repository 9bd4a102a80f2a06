"""The requests of an engine: which wait, which run, and the blocks that they hold."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fastgen_runtime.blocks import BlockPool, blocks_for
from fastgen_runtime.plan import Limits, schedule
from fastgen_runtime.request import (
    Constraint,
    FinishReason,
    NewRequest,
    NewToken,
    Refusal,
    RefusalKind,
    Request,
)
from fastgen_runtime.step import Chunk, ChunkResult, Step


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step brought. Tokens that were computed again after a preemption do not count."""

    tokens: tuple[NewToken, ...]
    num_prompt_tokens: int
    num_output_tokens: int


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
        self._running: list[Request] = []
        self._waiting: list[Request] = []
        self._arrivals = 0

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

    def add(self, new: NewRequest, constraint: Constraint | None = None) -> Refusal | None:
        """Takes a request, or says why not."""
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
        request = Request(new, self._arrivals, constraint)
        self._arrivals += 1
        self._requests[new.request_id] = request
        self._waiting.append(request)
        return None

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its blocks; an unknown one has ended already."""
        request = self._requests.get(request_id)
        if request is not None:
            self._forget(request)

    def schedule(self) -> Step:
        """The next step, its blocks reserved; without chunks when there is nothing to do."""
        plan = schedule(
            self._running,
            self._waiting,
            self.blocks.num_blocks,
            self.blocks.num_free,
            self.blocks.block_size,
            self.limits,
        )
        for request in plan.preempted:
            self._running.remove(request)
            self._waiting.append(request)
            self._release(request)
        for request in plan.admitted:
            self._waiting.remove(request)
            self._running.append(request)
        if plan.preempted:
            self.num_preemptions += len(plan.preempted)
            self._waiting.sort(key=lambda request: request.arrival)
        self._running.sort(key=lambda request: request.arrival)
        return Step(tuple(self._chunk(request, piece) for request, piece in plan.pieces))

    def commit(self, step: Step, results: Sequence[ChunkResult]) -> Committed:
        """Notes that `step` was computed; `results`: one per chunk."""
        tokens: list[NewToken] = []
        num_prompt = num_output = 0
        for chunk, result in zip(step.chunks, results, strict=True):
            token_id = result.token_id
            request = self._requests[chunk.request_id]
            end = chunk.start + len(chunk.token_ids)
            num_prompt += max(0, min(end, request.num_prompt_tokens) - request.num_counted)
            request.num_computed = end
            request.num_counted = max(request.num_counted, end)
            if (token_id is None) != (chunk.sampling is None):
                raise ValueError(f"request {chunk.request_id}: a token too many or too few")
            if token_id is None:
                continue
            request.token_ids.append(token_id)
            num_output += 1
            finish = self._finish_reason(request, token_id)
            tokens.append(NewToken(request.request_id, token_id, finish))
            if finish is not None:
                self._forget(request)
        return Committed(tuple(tokens), num_prompt, num_output)

    def check(self) -> None:
        """Raises BlocksCorruptedError unless each block is free or in a running request's table."""
        self.blocks.check([request.block_ids for request in self._running])

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        is_complete = request.constraint is not None and request.constraint.accept(token_id)
        if is_complete:
            return FinishReason.STOP
        if token_id in self._eos_token_ids and not request.new.ignore_eos:
            return FinishReason.STOP
        if request.num_output_tokens >= request.new.max_tokens:
            return FinishReason.LENGTH
        return None

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        (self._running if request in self._running else self._waiting).remove(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        self.blocks.release(request.block_ids)
        request.block_ids = []
        request.num_computed = 0

    def _chunk(self, request: Request, piece: int) -> Chunk:
        start, end = request.num_computed, request.num_computed + piece
        missing = blocks_for(end, self.blocks.block_size) - len(request.block_ids)
        if missing > 0:
            reserved = self.blocks.reserve(missing)
            if reserved is None:
                raise RuntimeError("the plan gave away blocks that are not there")
            request.block_ids.extend(reserved)
        is_last = end == len(request.token_ids)
        constraint = request.constraint if is_last else None
        return Chunk(
            request_id=request.request_id,
            token_ids=request.token_ids[start:end],
            start=start,
            block_ids=tuple(request.block_ids),
            sampling=request.new.sampling if is_last else None,
            mask=None if constraint is None else constraint.mask(),
        )
