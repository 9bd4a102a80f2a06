"""The scheduler keeps its promises for any pool, budget, lengths and aborts."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_runtime.blocks import BlockPool, BlocksCorruptedError
from fastgen_runtime.plan import Limits, peak_blocks, schedule
from fastgen_runtime.request import (
    FinishReason,
    NewRequest,
    NewToken,
    Refusal,
    RefusalKind,
    Request,
)
from fastgen_runtime.scheduler import Scheduler
from fastgen_runtime.step import ChunkResult, Sampling, Step

EOS = 0


def next_token(token_ids: list[int]) -> int:
    """A toy model: the next token depends on all before it, so any mistake shows."""
    return (sum((i + 1) * token for i, token in enumerate(token_ids)) * 31 + 7) % 97


class ToyCache:
    """Computes steps as a runner would: reads its context only from the blocks it is given."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.positions: dict[tuple[int, int], int] = {}

    def run(self, step: Step) -> list[ChunkResult]:
        results = []
        for chunk in step.chunks:
            for position, token in enumerate(chunk.token_ids, start=chunk.start):
                block = chunk.block_ids[position // self.block_size]
                self.positions[block, position % self.block_size] = token
            context = [
                self.positions[chunk.block_ids[i // self.block_size], i % self.block_size]
                for i in range(chunk.start + len(chunk.token_ids))
            ]
            results.append(ChunkResult(next_token(context) if chunk.sampling else None))
        return results


def alone(new: NewRequest) -> list[int]:
    """The tokens that a request gets when nobody else is there."""
    token_ids = list(new.prompt_token_ids)
    while len(token_ids) < len(new.prompt_token_ids) + new.max_tokens:
        token_ids.append(next_token(token_ids))
        if token_ids[-1] == EOS and not new.ignore_eos:
            break
    return token_ids[len(new.prompt_token_ids) :]


def request(request_id: str, prompt: int, max_tokens: int, ignore_eos: bool = False) -> NewRequest:
    token_ids = [(len(request_id) * 13 + i * 7) % 97 for i in range(prompt)]
    return NewRequest(request_id, token_ids, max_tokens, Sampling(), ignore_eos)


@st.composite
def situations(draw: st.DrawFn) -> tuple[BlockPool, Limits, list[NewRequest], set[int]]:
    pool = BlockPool(draw(st.integers(1, 24)), draw(st.integers(1, 6)))
    budget = draw(st.integers(1, 24))
    limits = Limits(
        budget_tokens=budget,
        max_running=draw(st.integers(1, budget)),
        max_waiting=draw(st.integers(0, 30)),
        max_length=draw(st.integers(2, 200)),
        expected_output_tokens=draw(st.sampled_from([1, 4, 1000])),
    )
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 30), st.booleans())
    news = [request(f"r{i}", *size) for i, size in enumerate(draw(st.lists(sizes, max_size=25)))]
    aborted = draw(st.sets(st.integers(0, 25), max_size=4))
    return pool, limits, news, aborted


@settings(max_examples=300, deadline=None)
@given(situations(), st.integers(1, 7))
def test_every_request_gets_its_tokens_whatever_else_happens(
    situation: tuple[BlockPool, Limits, list[NewRequest], set[int]], per_step: int
) -> None:
    pool, limits, news, aborted = situation
    scheduler = Scheduler(pool, limits, eos_token_ids=[EOS])
    cache = ToyCache(pool.block_size)
    to_come = [(i, new) for i, new in enumerate(news)]
    taken: dict[str, NewRequest] = {}
    refused: dict[str, Refusal] = {}
    got: dict[str, list[NewToken]] = {}
    prompt_tokens = output_tokens = 0
    bound = sum(len(n.prompt_token_ids) + n.max_tokens for n in news) ** 2 + 10
    for number in itertools.count():
        assert number < bound, "no progress"
        arriving, to_come = to_come[:per_step], to_come[per_step:]
        for _, new in arriving:
            refusal = scheduler.add(new)
            if refusal is None:
                taken[new.request_id] = new
                got[new.request_id] = []
            else:
                refused[new.request_id] = refusal
        if number in aborted and got:
            victim = sorted(got)[number % len(got)]
            scheduler.abort(victim)
            taken.pop(victim, None)
        scheduler.check()
        if not (scheduler.running or scheduler.waiting or to_come):
            break
        busy = bool(scheduler.running or scheduler.waiting)
        step = scheduler.schedule()
        scheduler.check()
        assert bool(step.chunks) == busy
        assert step.num_tokens <= limits.budget_tokens
        assert len(scheduler.running) <= limits.max_running
        assert max(Counter(chunk.request_id for chunk in step.chunks).values(), default=1) == 1
        committed = scheduler.commit(step, cache.run(step))
        prompt_tokens += committed.num_prompt_tokens
        output_tokens += committed.num_output_tokens
        for token in committed.tokens:
            got[token.request_id].append(token)
    for request_id, new in taken.items():
        tokens = [token.token_id for token in got[request_id]]
        assert tokens == alone(new)
        finishes = [token.finish for token in got[request_id]]
        assert finishes[:-1] == [None] * (len(tokens) - 1)
        ended = tokens[-1] == EOS and not new.ignore_eos
        assert finishes[-1] is (FinishReason.STOP if ended else FinishReason.LENGTH)
    assert output_tokens == sum(len(tokens) for tokens in got.values())
    if not aborted:
        assert prompt_tokens == sum(len(new.prompt_token_ids) for new in taken.values())
    assert pool.num_free == pool.num_blocks
    most = scheduler.max_length
    for request_id, refusal in refused.items():
        new = next(new for new in news if new.request_id == request_id)
        too_long = len(new.prompt_token_ids) + new.max_tokens > most
        assert refusal.kind is (RefusalKind.TOO_LONG if too_long else RefusalKind.FULL)


def drive(scheduler: Scheduler, cache: ToyCache) -> list[Step]:
    """Steps until all requests have ended."""
    steps = []
    while scheduler.running or scheduler.waiting:
        steps.append(scheduler.schedule())
        scheduler.commit(steps[-1], cache.run(steps[-1]))
    return steps


def test_answers_come_first_and_prompts_fill_the_budget() -> None:
    scheduler = Scheduler(BlockPool(100, 4), Limits(16, 8, 8, 200))
    cache = ToyCache(4)
    scheduler.add(request("a", 3, 20, ignore_eos=True))
    scheduler.commit(step := scheduler.schedule(), cache.run(step))
    scheduler.add(request("long", 40, 2, ignore_eos=True))
    scheduler.add(request("next", 10, 2, ignore_eos=True))
    pieces = []
    for _ in range(4):
        step = scheduler.schedule()
        scheduler.commit(step, cache.run(step))
        pieces.append([(chunk.request_id, len(chunk.token_ids)) for chunk in step.chunks])
    assert pieces == [
        [("a", 1), ("long", 15)],
        [("a", 1), ("long", 15)],
        [("a", 1), ("long", 10), ("next", 5)],
        [("a", 1), ("long", 1), ("next", 5)],
    ]


def test_only_the_last_piece_of_a_prompt_asks_for_a_token() -> None:
    scheduler = Scheduler(BlockPool(100, 4), Limits(16, 8, 8, 200))
    scheduler.add(request("a", 40, 1))
    steps = drive(scheduler, ToyCache(4))
    assert [step.chunks[0].sampling is not None for step in steps] == [False, False, True]


def test_a_request_that_can_never_fit_is_told_the_limit() -> None:
    scheduler = Scheduler(BlockPool(4, 4), Limits(16, 8, 8, 200))
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


def test_requests_are_let_in_only_when_their_expected_peaks_fit() -> None:
    scheduler = Scheduler(BlockPool(10, 4), Limits(16, 8, 8, 200, expected_output_tokens=100))
    for i in range(3):
        scheduler.add(request(f"r{i}", 4, 12, ignore_eos=True))
    scheduler.schedule()
    assert [r.request_id for r in scheduler.running] == ["r0", "r1"]
    assert scheduler.num_preemptions == 0


def test_the_victim_of_a_full_pool_is_the_one_with_least_to_recompute() -> None:
    scheduler = Scheduler(BlockPool(6, 4), Limits(16, 8, 8, 200, expected_output_tokens=1))
    cache = ToyCache(4)
    scheduler.add(request("short", 3, 12, ignore_eos=True))
    scheduler.add(request("long", 11, 12, ignore_eos=True))
    while not scheduler.num_preemptions:
        step = scheduler.schedule()
        scheduler.commit(step, cache.run(step))
    assert [r.request_id for r in scheduler.running] == ["long"]
    assert [r.request_id for r in scheduler.waiting] == ["short"]
    drive(scheduler, cache)
    assert scheduler.blocks.num_free == 6


def test_a_preempted_request_keeps_its_place_and_is_counted_once() -> None:
    scheduler = Scheduler(BlockPool(6, 4), Limits(4, 2, 8, 200, expected_output_tokens=1))
    cache = ToyCache(4)
    news = [request("short", 5, 6, True), request("long", 11, 6, True), request("next", 4, 2, True)]
    for new in news:
        scheduler.add(new)
    prompt_tokens = output_tokens = 0
    order: list[str] = []
    while scheduler.running or scheduler.waiting:
        before = scheduler.num_preemptions
        step = scheduler.schedule()
        if scheduler.num_preemptions > before and not order:
            order = [waiting.request_id for waiting in scheduler.waiting]
        committed = scheduler.commit(step, cache.run(step))
        prompt_tokens += committed.num_prompt_tokens
        output_tokens += committed.num_output_tokens
    # The step that preempts lets nobody in, though a place in `running` became free.
    assert order == ["short", "next"]
    assert prompt_tokens == 5 + 11 + 4
    assert output_tokens == sum(len(alone(new)) for new in news)


def test_a_victim_gives_back_its_tokens_and_blocks() -> None:
    def running(prompt: int, num_computed: int, block_ids: list[int], arrival: int) -> Request:
        made = Request(request(f"r{arrival}", prompt, 4), arrival)
        made.num_computed, made.block_ids = num_computed, block_ids
        return made

    first = running(6, 5, [0, 1], 0)
    needy = running(9, 8, [2, 3], 1)
    prompt = running(12, 8, [4, 5], 2)
    plan = schedule([first, needy, prompt], [], 6, 0, 4, Limits(3, 3, 0, 100))
    assert plan.preempted == (first,)
    assert plan.pieces == ((needy, 1), (prompt, 2))


def test_schedule_changes_nothing() -> None:
    running = Request(request("a", 8, 8), 0)
    waiting = Request(request("b", 8, 8), 1)
    plan = schedule([running], [waiting], 20, 20, 4, Limits(12, 4, 4, 100))
    assert plan.pieces == ((running, 8), (waiting, 4))
    assert plan.admitted == (waiting,)
    assert (running.num_computed, running.block_ids, waiting.block_ids) == (0, [], [])


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_the_predicted_peak_is_never_below_the_real_one(
    sizes: list[tuple[int, int]], block_size: int
) -> None:
    limits = Limits(1000, 100, 0, 1000, expected_output_tokens=1000)
    requests = [Request(request(f"r{i}", *size), i) for i, size in enumerate(sizes)]
    predicted = peak_blocks(requests, limits, block_size)
    real = 0
    for elapsed in range(51):
        held = [p + elapsed for p, output in sizes if elapsed <= output]
        real = max(real, sum(-(-tokens // block_size) for tokens in held))
    assert real <= predicted <= real + len(sizes)


def test_unknown_requests_are_aborted_without_harm() -> None:
    scheduler = Scheduler(BlockPool(4, 4), Limits(16, 8, 8, 200))
    scheduler.abort("nobody")
    scheduler.check()


def test_the_pool_notices_a_second_release_and_a_lost_block() -> None:
    pool = BlockPool(4, 4)
    held = pool.reserve(2)
    assert held is not None
    assert pool.reserve(3) is None
    pool.share(held)
    pool.release(held)
    pool.check([held])
    pool.release(held)
    with pytest.raises(BlocksCorruptedError, match="twice"):
        pool.release(held)
    with pytest.raises(BlocksCorruptedError, match="free"):
        pool.share(held)
    lost = pool.reserve(1)
    with pytest.raises(BlocksCorruptedError, match="differ"):
        pool.check([])
    assert lost is not None
    pool.check([lost])
