"""The engine's step: what it reports, and how it heeds a pace."""

import time
from dataclasses import replace

import pytest
from toy_model import ToyCache, alone, request

from fastgen_api.spec import BudgetMode
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.step import ChunkResult, Step


class ToyRunner:
    """A toy model behind the runner's interface, with blocks of four tokens."""

    num_blocks = 200
    block_size = 4

    def __init__(self) -> None:
        self._cache = ToyCache(4)

    def run(self, step: Step) -> list[ChunkResult]:
        return self._cache.run(step)


def engine_of(mode: BudgetMode) -> Engine:
    return Engine(ToyRunner(), Limits(32, 8, 8, 500, budget_mode=mode))


def test_who_waited_at_a_balancer_is_late_the_sooner() -> None:
    engine = Engine(ToyRunner(), Limits(32, 1, 8, 500))
    engine.set_pace(Pace(first_token_seconds=60.0))
    now = time.monotonic()
    engine.add(replace(request("waited", 5, 1), arrived=now, waited=61.0))
    engine.add(replace(request("came", 5, 1), arrived=now + 1.0))
    ended = [t.request_id for _ in range(2) for t in engine.step().committed.tokens]
    assert ended == ["came", "waited"]


def test_steps_report_what_was_expected_of_them() -> None:
    engine = engine_of(BudgetMode.FIXED)
    engine.add(request("a", 5, 6))
    beats = []
    while engine.has_work:
        beats.append(engine.step())
        engine.check()
    assert [token.token_id for b in beats for token in b.committed.tokens] == alone(
        request("a", 5, 6)
    )
    # The first steps of a process tell nothing about the next ones.
    assert [b.predicted_seconds is None for b in beats] == [True] * 3 + [False] * 3
    assert [b.num_step_tokens for b in beats] == [5, 1, 1, 1, 1, 1]
    assert {b.budget_tokens for b in beats} == {32}


def test_steps_that_tell_prompts_log_probabilities_are_neither_predicted_nor_learned_from() -> None:
    engine = engine_of(BudgetMode.FIXED)
    usual, asking = request("usual", 5, 3), request("asking", 50, 1)
    predicted = []
    for new in (asking, usual, asking, usual):
        engine.add(replace(new, num_prompt_logprobs=0 if new is asking else None))
        while engine.has_work:
            predicted.append(engine.step().predicted_seconds is not None)
    # The first three that count are those of the first usual request.
    assert predicted == [False, False, *[False] * 3, False, False, *[True] * 3]


def test_cached_tokens_are_reported_with_the_step_that_found_them() -> None:
    engine = engine_of(BudgetMode.FIXED)
    for name in "ab":
        engine.add(replace(request("same", 9, 2), request_id=name))
    beats = [engine.step() for _ in range(3)]
    assert [b.num_cached_tokens for b in beats] == [0, 8, 0]
    assert [b.committed.num_prompt_tokens for b in beats] == [9, 1, 0]


@pytest.mark.parametrize(("mode", "tokens"), [(BudgetMode.AUTO, 1 + 4), (BudgetMode.FIXED, 32)])
def test_a_pace_that_cannot_be_kept_leaves_prompts_a_block_in_mode_auto(
    mode: BudgetMode, tokens: int
) -> None:
    engine = engine_of(mode)
    engine.add(request("stream", 3, 100))
    for _ in range(5):
        engine.step()
    engine.set_pace(Pace(1e-9, None))
    engine.add(request("prompt", 200, 2))
    beat = engine.step()
    assert beat.num_step_tokens == tokens
    assert beat.budget_tokens == tokens
    engine.set_pace(Pace())
    assert engine.step().num_step_tokens == 32


def test_requests_whose_deadline_has_passed_are_told_once() -> None:
    engine = engine_of(BudgetMode.AUTO)
    engine.add(replace(request("a", 3, 9), deadline=0.0))
    beat = engine.step()
    assert beat.expired == ("a",)
    assert (beat.num_step_tokens, beat.committed.tokens, beat.predicted_seconds) == (0, (), None)
    assert not engine.has_work
