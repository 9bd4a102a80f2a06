"""The engine's benchmarks: modes plan what they are called, and times are those of the steps."""

from itertools import count

import pytest
from engine_loop import EngineLoop
from engine_modes import MODES, MOST_TOKENS, Mode, make_engine
from toy_model import ToyCache

from fastgen_cli.bench.requests import Request
from fastgen_runtime.engine.step import ChunkResult, Step

BY_NAME = {mode.name: mode for mode in MODES}


class ToyRunner:
    """A toy model that keeps the steps' shapes: tokens of prompts, and answers that get a token."""

    num_blocks = 1000
    block_size = 4

    def __init__(self) -> None:
        self._cache = ToyCache(4)
        self.steps: list[tuple[int, int]] = []

    def run(self, step: Step) -> list[ChunkResult]:
        sizes = [len(chunk.token_ids) for chunk in step.chunks]
        self.steps.append((sum(size for size in sizes if size > 1), sizes.count(1)))
        return self._cache.run(step)


def steps_of(mode: Mode) -> list[tuple[int, int]]:
    """Of a chat and a prompt of 700 tokens that comes once the chat has begun.

    Each look at the clock is a second later than the one before.
    """
    runner = ToyRunner()
    loop = EngineLoop(make_engine(mode, runner, 8), count().__next__)
    requests = [Request(0, 0.0, 10, 6), Request(1, 3.0, 700, 2)]
    records = loop.open(requests)
    assert sorted(record.output_tokens for record in records) == [2, 6]
    return runner.steps


def test_whole_prompts_join_running_answers_in_one_step() -> None:
    steps = steps_of(BY_NAME["whole prompts"])
    assert (700, 1) in steps
    assert max(tokens for tokens, _ in steps) == 700


def test_prefill_first_lets_answers_stand_still_beside_a_prompt() -> None:
    steps = steps_of(BY_NAME["prefill first"])
    assert (700, 0) in steps
    assert all(not answers for tokens, answers in steps if tokens)


def test_split_fuse_fills_each_step_to_its_budget() -> None:
    steps = steps_of(BY_NAME["Fixed"])
    assert (511, 1) in steps
    assert (189, 1) in steps


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_answers_everything(mode: Mode) -> None:
    loop = EngineLoop(make_engine(mode, ToyRunner(), 4))
    requests = [Request(number, 0.0, 5 + 90 * number, 1 + number) for number in range(7)]
    records = loop.closed(requests, 3)
    assert sorted(record.output_tokens for record in records) == [1, 2, 3, 4, 5, 6, 7]
    for record in records:
        assert record.failure is None
        assert len(record.token_seconds) == record.output_tokens
        assert record.sent_seconds <= record.token_seconds[0] <= record.ended_seconds


def test_waiting_for_a_step_to_end_is_part_of_a_requests_time() -> None:
    loop = EngineLoop(make_engine(BY_NAME["Fixed"], ToyRunner(), 4), count().__next__)
    first, second = sorted(
        loop.open([Request(0, 0.0, 8, 1), Request(1, 3.5, 8, 1)]), key=lambda r: r.sent_seconds
    )
    assert (first.sent_seconds, second.sent_seconds) == (0.0, 3.5)
    assert second.ttft_seconds >= 1


def test_what_an_engine_refuses_is_a_failure() -> None:
    loop = EngineLoop(make_engine(BY_NAME["Fixed"], ToyRunner(), 4))
    (record,) = loop.closed([Request(0, 0.0, MOST_TOKENS, 1)], 1)
    assert record.failure is not None
    assert record.failure.kind == "too_long"
