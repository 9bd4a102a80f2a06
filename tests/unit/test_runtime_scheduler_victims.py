"""Who is preempted when blocks run out, and what that frees."""

from dataclasses import replace

from toy_model import ToyCache, advance, drive, request

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.outlook import LengthHistory
from fastgen_runtime.engine.plan import Limits, schedule
from fastgen_runtime.engine.request import Request
from fastgen_runtime.engine.scheduler import Scheduler


def scheduler_of(blocks: int) -> Scheduler:
    """Answers are taken to be short, so that too many requests are let in."""
    return Scheduler(BlockPool(blocks, 4), Limits(16, 8, 8, 200, expected_output_tokens=1))


def test_the_victim_of_a_full_pool_is_the_one_with_least_to_recompute() -> None:
    scheduler, cache = scheduler_of(6), ToyCache(4)
    scheduler.add(request("short", 3, 12))
    scheduler.add(request("long", 11, 12))
    while not scheduler.num_preemptions:
        advance(scheduler, cache)
    assert [r.request_id for r in scheduler.running] == ["long"]
    assert [r.request_id for r in scheduler.waiting] == ["short"]
    drive(scheduler, cache)
    assert scheduler.blocks.num_free == 6


def test_a_victim_gives_back_its_tokens_and_blocks() -> None:
    pool = BlockPool(6, 4)

    def running(prompt: int, num_computed: int, arrival: int) -> Request:
        made = Request(request(f"r{arrival}", prompt, 4), arrival)
        made.num_computed, made.block_ids = num_computed, pool.reserve(2) or []
        return made

    first, needy, prompt = running(6, 5, 0), running(9, 8, 1), running(12, 8, 2)
    plan = schedule(
        [first, needy, prompt], [], pool, Limits(3, 3, 0, 100), Budget(3), LengthHistory(256)
    )
    assert plan.preempted == (first,)
    assert plan.pieces == ((needy, 1), (prompt, 2))


def holding(*tables: list[int]) -> list[Request]:
    """Answers under way, each of which needs one more block."""
    made = [Request(request(f"r{i}", 60, 9), i) for i in range(len(tables))]
    for one, blocks in zip(made, tables, strict=True):
        one.block_ids, one.num_computed = blocks, 4 * len(blocks)
        del one.token_ids[one.num_computed + 1 :]
    return made


def test_a_victim_gives_back_only_what_no_other_holds() -> None:
    pool = BlockPool(5, 4)
    shared, [a], [v], [b] = (pool.reserve(count) or [] for count in (2, 1, 1, 1))
    pool.share(shared)
    sharing, single, victim = holding([*shared, a], [b], [*shared, v])
    plan = schedule(
        [sharing, single, victim], [], pool, Limits(8, 8, 0, 100), Budget(8), LengthHistory(1)
    )
    # Each needs a block: one becomes free with the victim, and nobody is cheaper than the second.
    assert plan.preempted == (victim, single)
    assert plan.pieces == ((sharing, 1),)


def test_one_that_holds_nothing_by_itself_is_no_cheap_victim() -> None:
    pool = BlockPool(5, 4)
    shared, [a], others = (pool.reserve(count) or [] for count in (2, 1, 2))
    pool.share(shared)
    needy, *rest = holding([a], shared, shared, others)
    for one in rest:  # have room for their next token
        one.num_computed -= 1
        one.token_ids.pop()
    plan = schedule([needy, *rest], [], pool, Limits(8, 8, 0, 100), Budget(8), LengthHistory(1))
    assert plan.preempted == (needy,)


def test_nobody_takes_the_place_that_a_prompt_made_by_preempting_another() -> None:
    """Both prompts are stuck; the later one goes, and what it held is for the first one only."""
    pool = BlockPool(12, 4)
    stuck = [Request(request(f"r{i}", 28, 4), i) for i in range(2)]
    for one in stuck:
        one.block_ids, one.num_computed = pool.reserve(6) or [], 24
    newcomer = Request(request("newcomer", 3, 1), 2)
    plan = schedule(stuck, [newcomer], pool, Limits(20, 3, 1, 100), Budget(20), LengthHistory(1))
    assert plan.preempted == (stuck[1],)
    assert plan.pieces == ((stuck[0], 4),)
    assert plan.admitted == ()


def test_a_more_important_request_is_no_victim_of_a_less_important_one() -> None:
    scheduler, cache = scheduler_of(6), ToyCache(4)
    scheduler.add(replace(request("short", 3, 12), priority=-1))
    scheduler.add(request("long", 11, 12))
    while not scheduler.num_preemptions:
        advance(scheduler, cache)
    assert [r.request_id for r in scheduler.running] == ["short"]
    drive(scheduler, cache)
