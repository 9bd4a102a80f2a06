"""Who computes what others have computed: the prefix cache, groups, and what must not be shared."""

from dataclasses import replace

import pytest
from toy_model import ToyCache, advance, alone, drive, pieces, prompt_logprobs_alone, request

from fastgen_runtime.engine.blocks import BlockPool, BlocksCorruptedError
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest, NewToken
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Sampling

SYSTEM = list(range(1, 13))
"""A system prompt of three blocks."""


def scheduler_of(blocks: int = 100, caching: bool = True, budget: int = 64) -> Scheduler:
    limits = Limits(budget, 8, 100, 200, prefix_caching=caching)
    return Scheduler(BlockPool(blocks, 4), limits)


def ask(request_id: str, prompt: list[int], max_tokens: int = 4) -> NewRequest:
    return NewRequest(request_id, prompt, max_tokens, Sampling(), ignore_eos=True)


def choices(count: int, group: str = "g") -> list[NewRequest]:
    return [replace(ask(f"c{i}", [*SYSTEM, 50]), group=group) for i in range(count)]


class Watched:
    """A scheduler whose answers are checked, and whose prompt tokens are counted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.cache = ToyCache(4)
        self.computed = self.cached = 0
        self.got: dict[str, list[NewToken]] = {}

    def answer(self, *news: NewRequest) -> None:
        for new in news:
            assert self.scheduler.add(new) is None
            self.got[new.request_id] = []
        while self.scheduler.running or self.scheduler.waiting:
            scheduled = self.scheduler.schedule(0.0)
            self.scheduler.check()
            step = scheduled.step
            committed = self.scheduler.commit(step, self.cache.run(step), 0.0)
            self.scheduler.check()
            self.computed += committed.num_prompt_tokens
            self.cached += scheduled.num_cached_tokens
            for token in committed.tokens:
                self.got[token.request_id].append(token)
        for new in news:
            assert [token.token_id for token in self.got[new.request_id]] == alone(new)
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks

    def cached_of(self, request_id: str) -> int:
        started = self.got[request_id][0].started
        assert started is not None
        return started.cached_tokens


def test_a_request_computes_only_what_no_other_has_computed() -> None:
    watched = Watched(scheduler_of())
    watched.answer(ask("a", [*SYSTEM, 50, 51]))
    watched.answer(ask("b", [*SYSTEM, 60, 61, 62, 63]))
    assert [watched.cached_of(name) for name in "ab"] == [0, 12]
    assert (watched.computed, watched.cached) == (14 + 4, 12)


def test_the_next_turn_of_a_chat_finds_the_answer_too() -> None:
    watched = Watched(scheduler_of())
    first = ask("a", SYSTEM, max_tokens=9)
    watched.answer(first)
    watched.answer(ask("b", [*SYSTEM, *alone(first), 70, 71]))
    # 12 + 9 tokens, of which the last one was never computed: five full blocks.
    assert watched.cached_of("b") == 20


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_the_last_token_of_a_prompt_is_always_computed(length: int, cached: int) -> None:
    watched = Watched(scheduler_of())
    watched.answer(ask("a", SYSTEM[:length]))
    watched.answer(ask("b", SYSTEM[:length]))
    assert watched.cached_of("b") == cached


def test_equal_blocks_after_different_beginnings_are_not_the_same() -> None:
    watched = Watched(scheduler_of())
    watched.answer(ask("a", [1, 2, 3, 4, 9, 9, 9, 9, 5]))
    watched.answer(ask("b", [4, 3, 2, 1, 9, 9, 9, 9, 5]))
    assert watched.cached_of("b") == 0


def test_without_the_cache_nobody_finds_anything() -> None:
    watched = Watched(scheduler_of(caching=False))
    watched.answer(ask("a", [*SYSTEM, 50]), ask("b", [*SYSTEM, 50]))
    watched.answer(ask("c", [*SYSTEM, 50]))
    assert (watched.computed, watched.cached) == (3 * 13, 0)


@pytest.mark.parametrize("caching", [True, False])
def test_the_choices_of_one_request_compute_its_prompt_once(caching: bool) -> None:
    watched = Watched(scheduler_of(caching=caching))
    watched.answer(*choices(4))
    assert (watched.computed, watched.cached) == (13 + 3, 3 * 12)
    assert [watched.cached_of(f"c{i}") for i in range(4)] == [0, 12, 12, 12]


def test_choices_hold_their_prompt_once() -> None:
    scheduler, cache = scheduler_of(), ToyCache(4)
    for new in choices(4):
        scheduler.add(new)
    advance(scheduler, cache)
    advance(scheduler, cache)
    assert len(scheduler.running) == 4
    # Three blocks of the prompt, and one or two more of each choice.
    assert scheduler.blocks.num_free == 100 - 3 - 4


@pytest.mark.parametrize("caching", [True, False])
def test_a_prompt_that_its_choices_share_is_counted_once(caching: bool) -> None:
    """Of 100 blocks the prompt takes 60: there is room for the eight answers at once."""
    limits = Limits(512, 8, 100, 400, prefix_caching=caching)
    scheduler, cache = Scheduler(BlockPool(100, 4), limits), ToyCache(4)
    for i in range(8):
        scheduler.add(replace(request("c", 241, 16), group="g", request_id=f"c{i}"))
    advance(scheduler, cache)
    advance(scheduler, cache)
    assert len(scheduler.running) == 8
    drive(scheduler, cache)
    assert scheduler.num_preemptions == 0


def test_a_prompt_in_use_is_counted_once_for_all_who_find_it() -> None:
    scheduler, cache = scheduler_of(blocks=30, budget=512), ToyCache(4)
    base = list(range(1, 81))
    scheduler.add(ask("maker", [*base, 90], max_tokens=8))
    advance(scheduler, cache)
    for i in range(2):
        scheduler.add(ask(f"finds{i}", [*base, 91 + i], max_tokens=4))
    scheduler.add(ask("other", [*reversed(base)][:16], max_tokens=4))
    advance(scheduler, cache)
    # 20 blocks of the beginning, 3 and twice 2 besides: 3 are left of 30.
    assert [one.request_id for one in scheduler.running] == ["maker", "finds0", "finds1"]
    drive(scheduler, cache)
    assert scheduler.num_preemptions == 0


def test_the_books_on_what_was_found_are_checked() -> None:
    scheduler, cache = scheduler_of(), ToyCache(4)
    for new in choices(2):
        scheduler.add(new)
    advance(scheduler, cache)
    advance(scheduler, cache)
    finder = scheduler.running[1]
    assert finder.num_hits == 3
    finder.num_hits = 2
    with pytest.raises(BlocksCorruptedError, match="hits"):
        scheduler.check()


def test_groups_share_with_nobody_else_when_the_cache_is_off() -> None:
    watched = Watched(scheduler_of(caching=False))
    watched.answer(*choices(1, "g"))
    watched.answer(*(replace(new, request_id="other", group="h") for new in choices(1)))
    watched.answer(ask("none", [*SYSTEM, 50]))
    assert watched.cached == 0


def test_a_burst_of_one_system_prompt_computes_it_once() -> None:
    scheduler, cache = scheduler_of(budget=8), ToyCache(4)
    for i in range(3):
        scheduler.add(ask(f"r{i}", [*SYSTEM, 60 + i], max_tokens=2))
    scheduler.add(request("other", 3, 2))
    steps = [pieces(advance(scheduler, cache)[0]) for _ in range(3)]
    assert steps == [
        # Those behind wait, but not one that shares nothing with the first.
        [("r0", 8)],
        [("r0", 5), ("other", 3)],
        [("r0", 1), ("other", 1), ("r1", 1), ("r2", 1)],
    ]


def test_who_waits_for_a_prompt_under_way_goes_on_when_that_is_aborted() -> None:
    scheduler, cache = scheduler_of(budget=8), ToyCache(4)
    scheduler.add(ask("first", [*SYSTEM, 60]))
    advance(scheduler, cache)
    scheduler.add(ask("second", [*SYSTEM, 61]))
    assert pieces(advance(scheduler, cache)[0]) == [("first", 5)]
    scheduler.add(ask("third", [*SYSTEM, *SYSTEM, 62]))
    scheduler.abort("first")
    assert pieces(advance(scheduler, cache)[0]) == [("second", 1), ("third", 7)]


@pytest.mark.parametrize(
    ("priority", "given"), [(-1, [("second", 5), ("first", 3)]), (0, [("first", 3)])]
)
def test_nobody_waits_for_a_less_important_request(
    priority: int, given: list[tuple[str, int]]
) -> None:
    scheduler, cache = scheduler_of(budget=10), ToyCache(4)
    # Two blocks of `first` are whole, and a third one is begun.
    scheduler.add(ask("first", [*SYSTEM, 60]))
    advance(scheduler, cache)
    scheduler.add(replace(ask("second", [*SYSTEM, 61]), priority=priority))
    assert pieces(advance(scheduler, cache)[0]) == given


def test_blocks_that_are_needed_are_taken_from_those_unused_for_longest() -> None:
    watched = Watched(scheduler_of(blocks=10))
    watched.answer(ask("a", [*SYSTEM, 50], max_tokens=3))
    watched.answer(ask("b", list(range(20, 33)), max_tokens=3))
    watched.answer(ask("a2", [*SYSTEM, 50], max_tokens=3))
    assert watched.cached_of("a2") == 12
    # Needs six blocks: all that were never used, and the oldest ones, which are b's.
    watched.answer(ask("c", list(range(40, 62)), max_tokens=2))
    watched.answer(ask("a3", [*SYSTEM, 50], max_tokens=3))
    assert watched.cached_of("a3") == 12
    watched.answer(ask("b2", list(range(20, 33)), max_tokens=3))
    assert watched.cached_of("b2") < 12


def test_the_end_of_a_prompt_is_lost_before_its_beginning() -> None:
    watched = Watched(scheduler_of(blocks=5))
    watched.answer(ask("a", [*SYSTEM, 50], max_tokens=3))
    watched.answer(ask("b", list(range(20, 33)), max_tokens=1))
    watched.answer(ask("a2", [*SYSTEM, 50], max_tokens=3))
    assert watched.cached_of("a2") == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    limits = Limits(64, 8, 100, 200, expected_output_tokens=1)
    scheduler, cache = Scheduler(BlockPool(12, 4), limits), ToyCache(4)
    scheduler.add(request("victim", 10, 12))
    scheduler.add(request("long", 18, 14))
    while not scheduler.num_preemptions:
        advance(scheduler, cache)
    [victim] = scheduler.waiting
    known = len(scheduler.blocks.match(victim.digests, 100))
    assert known >= 3
    computed = 0
    for step in drive(scheduler, cache):
        computed += sum(len(c.token_ids) for c in step.chunks if c.request_id == "victim")
    # Not all 22 tokens again: what `long` has not taken was still there.
    assert computed < 22


def test_prompt_log_probabilities_are_computed_whole_and_told_once() -> None:
    scheduler, cache = scheduler_of(budget=8), ToyCache(4)
    scheduler.add(ask("a", [*SYSTEM, 50]))
    drive(scheduler, cache)
    wanting = replace(ask("b", [*SYSTEM, 50]), num_prompt_logprobs=0)
    scheduler.add(wanting)
    tokens: list[NewToken] = []
    kept: set[int] = set()

    def note(token: NewToken) -> None:
        tokens.append(token)
        kept.update(len(one.prompt_logprobs) for one in scheduler.running)

    steps = drive(scheduler, cache, note)
    assert sum(len(chunk.targets) for step in steps for chunk in step.chunks) == 12
    assert [token.started is not None for token in tokens] == [True, False, False, False]
    assert tokens[0].started is not None
    assert list(tokens[0].started.prompt_logprobs) == prompt_logprobs_alone(wanting)
    assert tokens[0].started.cached_tokens == 0
    assert kept == {0}


@pytest.mark.parametrize("budget", [2, 64])
def test_a_preempted_request_tells_each_log_probability_once(budget: int) -> None:
    limits = Limits(64, 2, 100, 200, expected_output_tokens=1)
    scheduler, cache = Scheduler(BlockPool(9, 4), limits), ToyCache(4)
    scheduler.add(replace(ask("long", list(range(20, 34)), max_tokens=22), priority=-1))
    wanting = replace(ask("b", [*SYSTEM, 50]), num_prompt_logprobs=0)
    scheduler.add(wanting)
    while not scheduler.num_preemptions:
        advance(scheduler, cache, budget=Budget(2))
    [preempted] = scheduler.waiting
    assert 0 < len(preempted.prompt_logprobs) < 12
    tokens: list[NewToken] = []
    while scheduler.running or scheduler.waiting:
        tokens += advance(scheduler, cache, budget=Budget(budget))[1]
    [started] = [t.started for t in tokens if t.request_id == "b" and t.started]
    assert list(started.prompt_logprobs) == prompt_logprobs_alone(wanting)


def test_shared_blocks_are_counted_once_when_requests_are_let_in() -> None:
    # Each request alone needs 3 + 2 blocks; four of them together 3 + 4 × 2.
    scheduler, cache = scheduler_of(blocks=14), ToyCache(4)
    for new in choices(4):
        scheduler.add(new)
    advance(scheduler, cache)
    advance(scheduler, cache)
    assert len(scheduler.running) == 4
    drive(scheduler, cache)
    assert scheduler.num_preemptions == 0
