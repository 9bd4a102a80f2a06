"""Other ways to fill steps, on the same runner: what SplitFuse is compared with.

`prefill-first` computes whole prompts as soon as they come, and tokens of running answers only
while no prompt waits (the first schedulers with continuous batching: Kwon et al., 2023, section
4.3). `vanilla` takes a batch, answers all of it and only then takes the next one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fastgen_runtime.engine.blocks import BlockPool, blocks_for
from fastgen_runtime.engine.chunk import make_chunk
from fastgen_runtime.engine.engine import StepRunner
from fastgen_runtime.engine.request import NewRequest, Request
from fastgen_runtime.engine.step import Step

RIVALS: Final[Mapping[str, bool]] = {"prefill-first": True, "vanilla": False}
"""Whether a request may join those that run."""


def pieces_of(running: Sequence[Request], most_tokens: int) -> list[tuple[Request, int]]:
    """Whole prompts in their order, as many as fit, the first whatever its size; where there are
    none, a token of each request."""
    pieces: list[tuple[Request, int]] = []
    left = most_tokens
    for request in running:
        if request.num_owed > 1 and (request.num_owed <= left or not pieces):
            pieces.append((request, request.num_owed))
            left -= request.num_owed
    return pieces or [(request, 1) for request in running]


class Rival:
    """Runs steps as `pieces_of` says; a request gets all blocks that it will ever need at once."""

    def __init__(self, runner: StepRunner, may_join: bool, most_tokens: int) -> None:
        self._runner = runner
        self._may_join = may_join
        self._most_tokens = most_tokens
        self._pool = BlockPool(runner.num_blocks, runner.block_size)
        self._running: list[Request] = []
        self._waiting: list[Request] = []

    def add(self, new: NewRequest) -> None:
        self._waiting.append(Request(new, 0))

    def step(self) -> list[tuple[str, bool]]:
        """One step: who got a token, and whether it was the last."""
        if self._may_join or not self._running:
            self._let_in()
        pieces = pieces_of(self._running, self._most_tokens)
        if not pieces:
            return []
        step = Step(tuple(make_chunk(request, size, ()) for request, size in pieces))
        told = []
        for (request, size), result in zip(pieces, self._runner.run(step), strict=True):
            if result.token_id is None:
                raise RuntimeError(result.failed or "a whole prompt brought no token")
            request.num_computed += size
            request.token_ids.append(result.token_id)
            is_last = request.num_output_tokens >= request.new.max_tokens
            told.append((request.request_id, is_last))
            if is_last:
                self._running.remove(request)
                self._pool.release(request.block_ids)
        return told

    def _let_in(self) -> None:
        """In their order, while there are blocks for all their tokens."""
        while self._waiting:
            request = self._waiting[0]
            tokens = request.num_prompt_tokens + request.new.max_tokens
            blocks = self._pool.reserve(blocks_for(tokens, self._pool.block_size))
            if blocks is None:
                return
            request.block_ids = blocks
            self._running.append(self._waiting.pop(0))
