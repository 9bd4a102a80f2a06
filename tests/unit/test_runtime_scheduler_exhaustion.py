"""What made DeepSpeed-FastGen run out of blocks and hang, by its users' reports.

Numbers are issues and pull requests of deepspeedai/DeepSpeed-MII, unless another repository is
named. Each test drives the same engine to its end: `drive` fails when a step computes nothing.
"""

import random
from dataclasses import replace

import pytest
from toy_model import EOS, ToyCache, advance, alone, drive, request

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest, NewToken, RefusalKind
from fastgen_runtime.engine.scheduler import Scheduler

CACHING = pytest.mark.parametrize("caching", [True, False])


def scheduler_of(
    blocks: int,
    budget: int,
    running: int,
    caching: bool = True,
    max_length: int = 10_000,
    expected: int = 1,
) -> Scheduler:
    """By default answers are taken to be short, so that far too many requests are let in."""
    limits = Limits(budget, running, 1 << 20, max_length, expected, prefix_caching=caching)
    return Scheduler(BlockPool(blocks, 4), limits, [EOS])


def answers(scheduler: Scheduler, news: list[NewRequest]) -> dict[str, list[int]]:
    """All tokens of all requests, added at once; afterwards no block is taken."""
    got: dict[str, list[int]] = {new.request_id: [] for new in news}
    for new in news:
        assert scheduler.add(new) is None

    def note(token: NewToken) -> None:
        got[token.request_id].append(token.token_id)

    drive(scheduler, ToyCache(4), note)
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    return got


def load(count: int, rng: random.Random, prompt: int = 30, output: int = 30) -> list[NewRequest]:
    return [
        request(f"r{i}", rng.randrange(1, prompt), rng.randrange(1, output)) for i in range(count)
    ]


@CACHING
@pytest.mark.parametrize("seed", range(5))
def test_339_a_tiny_pool_under_random_load_never_deadlocks(seed: int, caching: bool) -> None:
    """339: "Deadlock detected" again and again, then an assertion kills the serving thread."""
    news = load(40, random.Random(seed))
    scheduler = scheduler_of(15, 16, 16, caching)
    got = answers(scheduler, news)
    assert got == {new.request_id: alone(new) for new in news}
    assert scheduler.num_preemptions > 0


@CACHING
def test_356_a_thousand_batches_one_after_another_leave_no_block_behind(caching: bool) -> None:
    """356: a pipeline that is called in a loop deadlocks after some calls."""
    scheduler = scheduler_of(8, 16, 4, caching)
    rng = random.Random(1)
    cache = ToyCache(4)
    for _ in range(1000):
        for new in load(3, rng, prompt=9, output=5):
            scheduler.add(new)
        drive(scheduler, cache)
        assert scheduler.blocks.num_free == 8


@pytest.mark.parametrize("running", [1, 3, 64])
def test_388_many_more_requests_than_there_is_room_for(running: int) -> None:
    """388: many concurrent requests deadlock, unless their number is limited by hand."""
    news = load(150, random.Random(2), prompt=20, output=16)
    got = answers(scheduler_of(10, 64, running), news)
    assert got == {new.request_id: alone(new) for new in news}


@CACHING
def test_pr_403_who_is_preempted_loses_and_repeats_nothing(caching: bool) -> None:
    """PR 274, 278, 403: a margin, then all requests flushed, then the last one; a flushed request
    lost tokens that it had, or was cut again at once and deadlocked again."""
    scheduler = scheduler_of(9, 8, 4, caching)
    news = [request(f"r{i}", 8, 25) for i in range(4)]
    cache, got = ToyCache(4), dict[str, list[int]]()
    for new in news:
        scheduler.add(new)
        got[new.request_id] = []
    while scheduler.running or scheduler.waiting:
        preempted = scheduler.num_preemptions
        step, tokens = advance(scheduler, cache)
        if scheduler.num_preemptions > preempted:
            # What was taken away is not given back in the step that took it.
            names = {waiting.request_id for waiting in scheduler.waiting}
            assert not names & {chunk.request_id for chunk in step.chunks}
        for token in tokens:
            got[token.request_id].append(token.token_id)
    assert got == {new.request_id: alone(new) for new in news}
    assert scheduler.num_preemptions > 2


@CACHING
@pytest.mark.parametrize("blocks", [8, 9, 12])
def test_choices_that_share_a_prompt_are_preempted_without_harm_to_the_others(
    blocks: int, caching: bool
) -> None:
    """Blocks of a victim that others hold, too, do not become free."""
    scheduler = scheduler_of(blocks, 16, 4, caching)
    news = [replace(request("c", 13, 18), request_id=f"c{i}", group="c") for i in range(4)]
    got = answers(scheduler, news)
    assert got == {new.request_id: alone(new) for new in news}
    assert scheduler.num_preemptions > 0


def test_282_one_prompt_that_is_too_long_hurts_nobody() -> None:
    """282: one very long prompt leaves the server broken until it is restarted."""
    scheduler = scheduler_of(10, 16, 8, max_length=30)
    news = load(5, random.Random(3), prompt=10, output=10)
    for new in news:
        assert scheduler.add(new) is None
    refusal = scheduler.add(request("huge", 5000, 1))
    assert refusal is not None
    assert refusal.kind is RefusalKind.TOO_LONG
    got: dict[str, list[int]] = {new.request_id: [] for new in news}
    drive(scheduler, ToyCache(4), lambda token: got[token.request_id].append(token.token_id))
    assert got == {new.request_id: alone(new) for new in news}


@CACHING
@pytest.mark.parametrize("around", [4, 16, 32, 40])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_291_lengths_around_blocks_and_budgets(around: int, off: int, caching: bool) -> None:
    """291: an input of about 2 000 tokens gives a serving error."""
    news = [request(f"r{i}", around + off, 5 + i) for i in range(3)]
    got = answers(scheduler_of(12, 16, 3, caching), news)
    assert got == {new.request_id: alone(new) for new in news}


def test_4855_a_request_as_long_as_the_pool_runs_and_one_token_more_is_refused() -> None:
    """DeepSpeed 4855: a prompt over the context fails in the block table, whatever max_length."""
    scheduler = scheduler_of(10, 16, 4)
    refusal = scheduler.add(request("over", 30, 11))
    assert refusal is not None
    assert refusal.kind is RefusalKind.TOO_LONG
    assert "40 tokens" in refusal.message
    fits = request("fits", 30, 10)
    news = [request("other", 5, 9), fits, request("third", 25, 9)]
    assert answers(scheduler, news) == {new.request_id: alone(new) for new in news}


def test_877_a_benchmark_of_512_requests_ends() -> None:
    """DeepSpeedExamples 877: the benchmark stalls in the middle of a run."""
    rng = random.Random(4)
    news = [
        replace(new, priority=rng.choice([0, 0, 1]), deadline=rng.choice([None, None, 200.0]))
        for new in load(512, rng, prompt=24, output=12)
    ]
    scheduler, cache = scheduler_of(40, 32, 32), ToyCache(4)
    to_come, now = list(news), 0.0
    ended = expired = 0
    while to_come or scheduler.running or scheduler.waiting:
        for new in to_come[:3]:
            scheduler.add(new)
        del to_come[:3]
        scheduled = scheduler.schedule(now)
        expired += len(scheduled.expired)
        results = cache.run(scheduled.step)
        committed = scheduler.commit(scheduled.step, results, now)
        scheduler.check()
        ended += sum(token.finish is not None for token in committed.tokens)
        now += 1
        assert now < 20_000
    assert ended + expired == 512
    assert ended > 300
    assert scheduler.blocks.num_free == 40


def test_a_long_prompt_does_not_block_those_that_run() -> None:
    """Head of line: each answer gets its token in each step while a long prompt is computed."""
    scheduler, cache = scheduler_of(200, 12, 8), ToyCache(4)
    for i in range(3):
        scheduler.add(request(f"r{i}", 3, 40))
    advance(scheduler, cache)
    scheduler.add(request("long", 300, 2))
    for _ in range(30):
        step, tokens = advance(scheduler, cache)
        assert {f"r{i}" for i in range(3)} <= {token.request_id for token in tokens}
        assert step.num_tokens == 12


def test_learned_lengths_keep_admitted_requests_from_being_preempted() -> None:
    """No admission by expected growth: preemption storms once answers are long."""

    def preemptions(expected: int, ended: int) -> int:
        scheduler = scheduler_of(60, 64, 32, expected=expected)
        cache = ToyCache(4)
        for i in range(ended):
            scheduler.add(request(f"ended{i}", 6, 40))
            drive(scheduler, cache)
        for i in range(30):
            scheduler.add(request(f"r{i}", 6, 40))
        drive(scheduler, cache)
        return scheduler.num_preemptions

    assert preemptions(expected=1, ended=0) > 5
    assert preemptions(expected=1, ended=40) == 0
