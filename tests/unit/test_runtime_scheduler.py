"""What a step is made of: answers first, prompts after them, priorities, deadlines, victims."""

import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from toy_model import EOS, ToyCache, advance, alone, drive, pieces, request

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.deadlines import Deadlines
from fastgen_runtime.engine.outlook import LengthHistory
from fastgen_runtime.engine.plan import Limits, schedule
from fastgen_runtime.engine.request import FinishReason, NewRequest, NewToken, RefusalKind, Request
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Sampling, TokenMask


def scheduler_of(blocks: int, budget: int, running: int = 8) -> Scheduler:
    limits = Limits(budget, running, 8, 200)
    return Scheduler(BlockPool(blocks, 4), limits, [EOS])


def test_answers_come_first_and_prompts_fill_the_budget() -> None:
    scheduler, cache = scheduler_of(100, 16), ToyCache(4)
    scheduler.add(request("a", 3, 20))
    advance(scheduler, cache)
    scheduler.add(request("long", 40, 2))
    scheduler.add(request("next", 10, 2))
    assert [pieces(advance(scheduler, cache)[0]) for _ in range(4)] == [
        [("a", 1), ("long", 15)],
        [("a", 1), ("long", 15)],
        [("a", 1), ("long", 10), ("next", 5)],
        [("a", 1), ("long", 1), ("next", 5)],
    ]


def test_only_the_last_piece_of_a_prompt_asks_for_a_token() -> None:
    scheduler = scheduler_of(100, 16)
    scheduler.add(request("a", 40, 1))
    steps = drive(scheduler, ToyCache(4))
    assert [step.chunks[0].sampling is not None for step in steps] == [False, False, True]


def test_a_request_that_can_never_fit_is_told_the_limit() -> None:
    scheduler = scheduler_of(4, 16)
    refusal = scheduler.add(request("a", 10, 7))
    assert refusal is not None
    assert refusal.kind is RefusalKind.TOO_LONG
    assert "10 prompt tokens" in refusal.message
    assert "16 tokens" in refusal.message
    assert scheduler.add(request("b", 10, 6)) is None


def test_the_queue_is_bounded() -> None:
    scheduler = Scheduler(BlockPool(100, 4), Limits(16, 2, 1, 200))
    assert [scheduler.add(request(f"r{i}", 3, 3)) for i in range(3)] == [None] * 3
    refusal = scheduler.add(request("r3", 3, 3))
    assert refusal is not None
    assert refusal.kind is RefusalKind.FULL


def test_a_preempted_request_keeps_its_place_and_is_counted_once() -> None:
    limits = Limits(4, 2, 8, 200, expected_output_tokens=1)
    scheduler, cache = Scheduler(BlockPool(6, 4), limits), ToyCache(4)
    news = [request("short", 5, 6), request("long", 11, 6), request("next", 4, 2)]
    for new in news:
        scheduler.add(new)
    prompt_tokens = output_tokens = 0
    order: list[str] = []
    while scheduler.running or scheduler.waiting:
        before = scheduler.num_preemptions
        step = scheduler.schedule(0.0).step
        if scheduler.num_preemptions > before and not order:
            order = [waiting.request_id for waiting in scheduler.waiting]
        committed = scheduler.commit(step, cache.run(step), 0.0)
        prompt_tokens += committed.num_prompt_tokens
        output_tokens += committed.num_output_tokens
    # The step that preempts lets nobody in, though a place in `running` became free.
    assert order == ["short", "next"]
    assert prompt_tokens == 5 + 11 + 4
    assert output_tokens == sum(len(alone(new)) for new in news)


def test_schedule_changes_nothing() -> None:
    running, waiting = Request(request("a", 8, 8), 0), Request(request("b", 8, 8), 1)
    pool = BlockPool(20, 4)
    plan = schedule(
        [running], [waiting], pool, Limits(12, 4, 4, 100), Budget(12), LengthHistory(256)
    )
    assert plan.pieces == ((running, 8), (waiting, 4))
    assert [admission.request for admission in plan.admitted] == [waiting]
    assert (running.num_computed, running.block_ids, waiting.block_ids) == (0, [], [])
    assert pool.num_free == 20


def test_unknown_requests_are_aborted_without_harm() -> None:
    scheduler = scheduler_of(4, 16)
    scheduler.abort("nobody")
    scheduler.check()


def test_whose_first_token_is_due_first_goes_first() -> None:
    scheduler, cache = scheduler_of(100, 8, running=4), ToyCache(4)
    scheduler.add(request("long", 40, 1), due=40.0)
    advance(scheduler, cache)
    order: list[str] = []
    for name, due in [("late", 50.0), ("b", 6.0), ("a", 5.0)]:
        scheduler.add(request(name, 8, 1), due=due)
    drive(scheduler, cache, lambda token: order.append(token.request_id))
    assert order == ["a", "b", "long", "late"]


def test_the_more_important_goes_first_and_the_earlier_among_equals() -> None:
    scheduler, cache = scheduler_of(100, 8, running=1), ToyCache(4)
    order: list[str] = []
    for name, priority in [("low", 5), ("a", 0), ("b", 0), ("urgent", -3)]:
        scheduler.add(replace(request(name, 3, 1), priority=priority))
    drive(scheduler, cache, lambda token: order.append(token.request_id))
    assert order == ["urgent", "a", "b", "low"]


def test_an_urgent_prompt_passes_one_that_is_under_way() -> None:
    scheduler, cache = scheduler_of(100, 8), ToyCache(4)
    scheduler.add(request("long", 60, 1))
    advance(scheduler, cache)
    scheduler.add(replace(request("urgent", 6, 1), priority=-1))
    assert pieces(advance(scheduler, cache)[0]) == [("urgent", 6), ("long", 2)]


def test_a_request_whose_deadline_has_passed_is_gone_at_the_next_step() -> None:
    scheduler, cache = scheduler_of(4, 16, running=1), ToyCache(4)
    scheduler.add(replace(request("runs", 5, 9), deadline=10.0))
    scheduler.add(replace(request("waits", 5, 9), deadline=9.5))
    scheduler.add(request("patient", 5, 9))
    advance(scheduler, cache, now=9.0)
    scheduled = scheduler.schedule(10.0)
    assert scheduled.expired == ("waits", "runs")
    assert pieces(scheduled.step) == [("patient", 5)]
    scheduler.commit(scheduled.step, cache.run(scheduled.step), 10.0)
    scheduler.abort("runs")
    drive(scheduler, cache)
    assert scheduler.blocks.num_free == 4


def test_the_deadline_of_a_request_that_has_ended_hurts_no_other_of_its_name() -> None:
    scheduler, cache = scheduler_of(4, 16), ToyCache(4)
    scheduler.add(replace(request("a", 5, 1), deadline=5.0))
    advance(scheduler, cache)
    scheduler.add(request("a", 5, 1))
    assert scheduler.schedule(6.0).expired == ()


class Prompt(list[int]):
    """A list that can be watched."""


def test_a_request_that_has_ended_is_not_kept_until_its_deadline() -> None:
    scheduler, cache = scheduler_of(10, 16), ToyCache(4)
    prompts = []
    for name in ("aborted", "answered"):
        prompt = Prompt([1, 2, 3, 4, 5])
        new = replace(request(name, 1, 2), prompt_token_ids=prompt, deadline=1e6)
        assert scheduler.add(new) is None
        prompts.append(weakref.ref(prompt))
    del prompt, new
    scheduler.abort("aborted")
    drive(scheduler, cache)
    assert [prompt() for prompt in prompts] == [None, None]


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    deadlines, requests = Deadlines(), dict[str, Request]()
    for number in range(1000):
        made = Request(request(f"r{number}", 3, 3), number)
        requests[made.request_id] = made
        if number >= 10:
            del requests[f"r{number - 10}"]
        deadlines.add(2000.0 - number, made, requests)
        assert len(deadlines) <= 2 * len(requests)
    assert [one.request_id for one in deadlines.pop(3000.0, requests)] == [
        f"r{number}" for number in range(999, 989, -1)
    ]
    assert len(deadlines) == 0


def tokens_of(new: NewRequest) -> list[NewToken]:
    scheduler = scheduler_of(50, 16)
    assert scheduler.add(new) is None
    tokens: list[NewToken] = []
    drive(scheduler, ToyCache(4), tokens.append)
    return tokens


def test_a_stop_token_ends_the_answer_but_not_before_its_fewest_tokens() -> None:
    free = tokens_of(request("a", 7, 20))
    third = free[2].token_id
    stopped = tokens_of(replace(request("a", 7, 20), stop_token_ids=(third,)))
    assert [token.token_id for token in stopped] == [token.token_id for token in free[:3]]
    assert stopped[-1].finish is FinishReason.STOP
    longer = tokens_of(replace(request("a", 7, 20), stop_token_ids=(third,), min_tokens=5))
    assert len(longer) >= 5
    assert third not in [token.token_id for token in longer[:5]]


def test_end_tokens_are_banned_until_the_fewest_tokens_are_there() -> None:
    scheduler, cache = scheduler_of(50, 16), ToyCache(4)
    new = replace(request("a", 7, 9), ignore_eos=False, min_tokens=2, stop_token_ids=(5,))
    scheduler.add(new)
    banned = [list(step.chunks[0].banned_token_ids) for step in drive(scheduler, cache)]
    assert banned[:3] == [[EOS, 5], [EOS, 5], []]
    ignoring = replace(new, ignore_eos=True)
    scheduler.add(ignoring)
    assert list(scheduler.schedule(0.0).step.chunks[0].banned_token_ids) == [5]


class Only:
    """Allows one token at a time, in order, and is complete after the last."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self.allowed = list(allowed)

    def mask(self) -> TokenMask:
        mask = np.zeros(4, np.int32)
        mask[self.allowed[0] // 32] = np.array(1 << self.allowed[0] % 32).astype(np.int32)
        return mask

    def accept(self, token_id: int) -> bool:
        assert token_id == self.allowed.pop(0)
        return not self.allowed


def test_a_constraint_is_asked_once_per_token_and_ends_the_answer() -> None:
    scheduler, cache = scheduler_of(50, 4, running=4), ToyCache(4)
    new = request("a", 9, 20)
    expected = alone(new)[:3]
    scheduler.add(new, Only(expected))
    tokens: list[NewToken] = []
    steps = drive(scheduler, cache, tokens.append)
    assert [step.chunks[0].mask is not None for step in steps] == [False, False, True, True, True]
    assert [token.token_id for token in tokens] == expected
    assert tokens[-1].finish is FinishReason.STOP


def test_a_complete_grammar_may_end_before_the_fewest_tokens() -> None:
    for end in (EOS, 31, 63):
        scheduler = Scheduler(BlockPool(9, 4), Limits(16, 8, 8, 30), [end])
        new = replace(request("a", 3, 9), ignore_eos=False, min_tokens=5)
        scheduler.add(new, Only([end]))
        assert not scheduler.schedule(0.0).step.chunks[0].banned_token_ids


def test_only_penalties_need_the_tokens_so_far() -> None:
    scheduler, cache = scheduler_of(50, 16), ToyCache(4)
    scheduler.add(request("plain", 5, 4))
    scheduler.add(replace(request("b", 6, 4), sampling=Sampling(presence_penalty=0.5)))
    advance(scheduler, cache)
    plain, penalised = scheduler.schedule(0.0).step.chunks
    assert (plain.prompt_token_ids, plain.output_token_ids) == ((), ())
    new = request("b", 6, 4)
    assert list(penalised.prompt_token_ids) == list(new.prompt_token_ids)
    assert list(penalised.output_token_ids) == alone(new)[:1]


def test_the_first_token_tells_how_long_its_request_waited() -> None:
    scheduler, cache = scheduler_of(50, 4, running=4), ToyCache(4)
    scheduler.add(replace(request("a", 6, 2), arrived=1.0))
    advance(scheduler, cache, now=3.5)
    _, tokens = advance(scheduler, cache, now=4.0)
    started = tokens[0].started
    assert started is not None
    assert started.queue_seconds == 2.5
    _, tokens = advance(scheduler, cache, now=5.0)
    assert tokens[0].started is None
