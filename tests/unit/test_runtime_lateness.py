"""Who is late lets those pass that may be in time, and waits for a bounded number of them."""

from dataclasses import replace

from toy_model import ToyCache, advance, request

from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget, Pace
from fastgen_runtime.engine.latency import StepCost
from fastgen_runtime.engine.lateness import TURNS, is_hopeless
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import Request
from fastgen_runtime.engine.scheduler import Scheduler

COST = StepCost(base=0.5, per_token=0.1, per_attended=0.0, per_request=0.0)


def one_at_a_time(waiting: int = 60) -> Scheduler:
    """Lets one request of 4 tokens run, which then has a step of its own."""
    return Scheduler(BlockPool(100, 4), Limits(8, 1, waiting, 200))


def step(scheduler: Scheduler, cache: ToyCache, now: float) -> list[str]:
    """Who is in the step."""
    scheduled = scheduler.schedule(now)
    scheduler.commit(scheduled.step, cache.run(scheduled.step), now)
    return [chunk.request_id for chunk in scheduled.step.chunks]


def test_who_may_be_in_time_goes_before_who_is_late() -> None:
    scheduler, cache = one_at_a_time(), ToyCache(4)
    for name, due in [("old", 1.0), ("older", 0.5), ("new", 9.0), ("newer", 9.5)]:
        scheduler.add(request(name, 4, 1), due=due, late_at=due)
    served = [step(scheduler, cache, now=5.0) for _ in range(4)]
    assert served == [["new"], ["newer"], ["older"], ["old"]]


def test_without_a_target_nobody_is_late() -> None:
    scheduler, cache = one_at_a_time(), ToyCache(4)
    pace = Pace(seconds_per_token=0.1)
    for name, came in [("first", 0.0), ("second", 1.0), ("third", 900.0)]:
        scheduler.add(request(name, 4, 1), due=pace.due(came, 4), late_at=pace.late_at(came, 4))
    assert [step(scheduler, cache, now=901.0) for _ in range(3)] == [
        ["first"],
        ["second"],
        ["third"],
    ]


def test_a_target_for_the_first_token_is_when_it_is_late() -> None:
    assert Pace(first_token_seconds=0.5).late_at(10.0, 512) == Pace(first_token_seconds=0.5).due(
        10.0, 512
    )
    assert Pace(seconds_per_prompt_token=0.01).late_at(10.0, 100) == 11.0


def test_a_late_one_waits_for_so_many_and_no_more() -> None:
    scheduler, cache = one_at_a_time(), ToyCache(4)
    scheduler.add(request("late", 4, 1), due=0.0, late_at=0.0)
    served: list[str] = []
    for number in range(3 * TURNS):
        # Whenever there is room somebody is there who may be in time.
        scheduler.add(request(f"r{number}", 4, 1), due=1e6, late_at=1e6)
        served += step(scheduler, cache, now=5.0)
    assert served.index("late") == TURNS - 1


def test_of_many_late_ones_each_gets_its_turn() -> None:
    scheduler, cache = one_at_a_time(), ToyCache(4)
    for number in range(3):
        scheduler.add(request(f"late{number}", 4, 1), due=float(number), late_at=float(number))
    served: list[str] = []
    for number in range(4 * TURNS):
        scheduler.add(request(f"r{number}", 4, 1), due=1e6, late_at=1e6)
        served += step(scheduler, cache, now=5.0)
    turns = [place for place, name in enumerate(served) if name.startswith("late")]
    assert turns == [TURNS - 1, 2 * TURNS - 1, 3 * TURNS - 1]


def test_late_is_who_cannot_be_in_time_though_due_only_later() -> None:
    new = request("long", 20, 1)
    long = Request(new, 0, due=10.0, late_at=10.0)
    assert not is_hopeless(long, COST, 7.4), "a step of 2.5 s would do"
    assert is_hopeless(long, COST, 7.6)
    long.first_token_at = 9.0
    assert not is_hopeless(long, COST, 20.0), "it was in time"


def test_an_importance_goes_before_lateness() -> None:
    scheduler, cache = one_at_a_time(), ToyCache(4)
    scheduler.add(request("usual", 4, 1), due=9.0, late_at=9.0)
    urgent = replace(request("urgent", 4, 1), priority=-1)
    scheduler.add(urgent, due=1.0, late_at=1.0)
    assert [step(scheduler, cache, now=5.0) for _ in range(2)] == [["urgent"], ["usual"]]


def test_a_stream_that_was_preempted_is_not_late() -> None:
    limits = Limits(8, 2, 8, 200, expected_output_tokens=1)
    scheduler, cache = Scheduler(BlockPool(6, 4), limits), ToyCache(4)
    for name, due in [("slow", 0.0), ("other", 0.5)]:
        scheduler.add(request(name, 5, 12), due=due, late_at=due)
    while not scheduler.num_preemptions:
        advance(scheduler, cache, now=5.0)
    victim = scheduler.waiting[0]
    assert victim.first_token_at is not None
    assert not victim.is_late
    # Nor does who came later, and may be in time, pass it.
    scheduler.add(request("new", 4, 1), due=1e6, late_at=1e6)
    assert [one.request_id for one in scheduler.waiting] == [victim.request_id, "new"]


def test_an_overload_costs_no_more_than_what_is_too_much() -> None:
    """Twice as many requests come as can be served: nearly half of them are in time, where in the
    order of arrival hardly any were."""
    scheduler, cache = one_at_a_time(), ToyCache(4)
    in_time = 0
    for now in range(200):
        for which in "ab":
            scheduler.add(request(f"{which}{now}", 4, 1), due=now + 3.0, late_at=now + 3.0)
        scheduled = scheduler.schedule(float(now), Budget(8))
        committed = scheduler.commit(scheduled.step, cache.run(scheduled.step), float(now))
        in_time += sum(int(token.request_id[1:]) + 3 >= now for token in committed.tokens)
    assert in_time >= 160
