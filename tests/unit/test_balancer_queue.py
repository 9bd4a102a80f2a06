"""The queue: who waits in it, for how long, and who waits for the first replica."""

import asyncio
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from balancer_books import Clock, endpoint, fleet_of, report
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer import dispatch
from fastgen_balancer.dispatch import (
    EMPTY_GRACE_SECONDS,
    PATIENCE_SECONDS,
    Dispatcher,
    Held,
    Placed,
)
from fastgen_balancer.member import Identity, Member
from fastgen_balancer.pick import Refusal, Request
from fastgen_balancer.settings import Settings

WORK = Request(generates=True, tokens=200)


def full(clock: Clock, max_queued: int = 100, holds: float = 0.0) -> Dispatcher:
    """One replica that takes one request, and holds it."""
    fleet = fleet_of(clock, "a")
    fleet.hear("a", report(clock.now, running=1, capacity=1))
    dispatcher = Dispatcher(fleet, Random(0), clock, max_queued)
    dispatcher.hold_seconds = holds
    return dispatcher


def until(deadline: float) -> Request:
    return Request(generates=True, tokens=1, deadline=deadline)


async def test_who_would_wait_too_long_is_told_at_once() -> None:
    clock = Clock()
    dispatcher = full(clock)
    fleet = dispatcher._fleet
    assert isinstance(dispatcher.offer("unknown", until(clock.now + 0.1)), Held), "no rate yet"
    assert dispatcher.offer("over", until(clock.now)) is Refusal.DEADLINE
    for i in range(5):
        assert isinstance(dispatcher.offer(f"r{i}", WORK), Held)
    for _ in range(2):
        clock.now += 1
        fleet.hear("a", report(clock.now, running=0, capacity=1))
        dispatcher.pump()
    assert dispatcher.queued == 4
    # One leaves each second: the fifth waits for five.
    assert dispatcher.offer("late", until(clock.now + 4.5)) is Refusal.DEADLINE
    assert isinstance(dispatcher.offer("in-time", until(clock.now + 5.5)), Held)
    assert 6 <= dispatcher.retry_after_seconds() <= 9


@pytest.mark.parametrize(
    ("deadline", "has_endpoint", "why"),
    [
        (None, True, Refusal.FULL),
        (31.0, True, Refusal.FULL),
        (30.0, True, Refusal.EXPIRED),
        (None, False, Refusal.NO_ENDPOINTS),
        (31.0, False, Refusal.NO_ENDPOINTS),
        (30.0, False, Refusal.EXPIRED),
    ],
)
async def test_who_leaves_the_queue_hears_whose_patience_ended(
    deadline: float | None, has_endpoint: bool, why: Refusal
) -> None:
    clock = Clock()
    dispatcher = full(clock)
    held = dispatcher.offer("r", WORK if deadline is None else until(clock.now + deadline))
    assert isinstance(held, Held)
    clock.now += 30.0
    if not has_endpoint:
        dispatcher._fleet.set_endpoints([])
    assert dispatcher.withdraw(held) is why


@pytest.mark.parametrize(
    ("placed", "now", "seconds", "is_held"),
    [
        ((), 1.2, 600.0, True),
        ((), 1.2, 5.0, True),
        ((), 1.2, 1.0, False),
        ((), 8.0, 600.0, True),
        ((), 8.0, 9.0, True),
        ((), 8.0, 7.0, False),
        ((), 28.0, 600.0, True),
        ((), 28.0, 27.0, False),
        ((2.5,), 14.0, 600.0, True),
        ((2.5,), 14.0, 12.0, True),
        ((2.5,), 14.0, 11.0, False),
        ((2.5, 28.5), 29.0, 600.0, True),
        ((2.5, 28.5), 29.0, 9.0, False),
    ],
)
async def test_a_deadline_counts_when_it_comes_before_the_turn(
    placed: tuple[float, ...], now: float, seconds: float, is_held: bool
) -> None:
    """Twenty wait; placed: seconds after the queue's begin at which one left it."""
    clock = Clock()
    dispatcher = full(clock)
    began = clock.now
    for i in range(20):
        assert isinstance(dispatcher.offer(f"r{i}", WORK), Held)
    for at in placed:
        clock.now = began + at
        dispatcher._fleet.hear("a", report(clock.now, running=0, capacity=1))
        dispatcher.pump()
    assert dispatcher.queued == 20 - len(placed)
    clock.now = began + now
    dispatcher._fleet.hear("a", report(clock.now, running=1, capacity=1))
    answer = dispatcher.offer("new", until(clock.now + seconds))
    assert isinstance(answer, Held) == is_held
    assert is_held or answer is Refusal.DEADLINE


@given(
    st.lists(st.floats(0.0, 60.0), max_size=20),
    st.floats(0.0, 120.0),
    st.sampled_from([1.0, 30.0, 90.0]),
)
def test_who_waits_longer_than_anybody_is_held_is_held_as_those_without_a_deadline(
    placed: list[float], later: float, longest: float
) -> None:
    async def run() -> None:
        clock = Clock()
        dispatcher = full(clock)
        dispatcher.max_wait_seconds = longest
        began = clock.now
        for i in range(30):
            assert isinstance(dispatcher.offer(f"r{i}", WORK), Held)
        for at in sorted(placed):
            clock.now = began + at
            dispatcher._fleet.hear("a", report(clock.now, running=0, capacity=1))
            dispatcher.pump()
        clock.now += later
        dispatcher._fleet.hear("a", report(clock.now, running=1, capacity=1))
        deadline = clock.now + longest + 0.1
        assert isinstance(dispatcher.offer("patient", until(deadline)), Held)

    asyncio.run(run())


async def test_a_deployments_longest_wait_is_its_queues(tmp_path: Path) -> None:
    member = Member(tmp_path, Identity("chat", "team"), Settings(max_wait_seconds=12.0))
    assert member.dispatcher.max_wait_seconds == 12.0
    member.set_settings(Settings(max_wait_seconds=9.0))
    assert member.dispatcher.max_wait_seconds == 9.0
    await member.close()


async def test_a_fleet_whose_answers_end_together_refuses_nobody_before() -> None:
    """Two replicas of 256 whose answers, begun together, take 8 to 20 s; 5 more come each second,
    from clients of OpenAI's, which wait for 600 s."""
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    dispatcher = Dispatcher(fleet, Random(1), clock, 1000)
    for name in "ab":
        fleet.hear(name, report(clock.now, capacity=256))
    for i in range(512):
        assert isinstance(dispatcher.offer(f"r{i}", until(clock.now + 600)), Placed)
    for i in range(40):
        clock.now += 0.2
        for name in "ab":
            fleet.hear(name, report(clock.now, running=256, capacity=256))
        dispatcher.pump()
        assert isinstance(dispatcher.offer(f"more-{i}", until(clock.now + 600)), Held), i
    assert 8 <= dispatcher.retry_after_seconds() <= 12, "as long again, not a minute"


async def test_a_queue_that_stands_is_served_from_its_end() -> None:
    """In overload some are in time instead of none; short queues are first come first served."""
    clock = Clock()
    dispatcher = full(clock)
    fleet = dispatcher._fleet
    held = []
    for i in range(4):
        one = dispatcher.offer(f"r{i}", WORK)
        assert isinstance(one, Held)
        held.append(one)

    def placed_next() -> list[str]:
        fleet.hear("a", report(clock.now, running=0, capacity=1))
        before = {one.id for one in held if one.placed.done()}
        dispatcher.pump()
        return [one.id for one in held if one.placed.done() and one.id not in before]

    clock.now += PATIENCE_SECONDS / 2
    assert placed_next() == ["r0"]
    clock.now += PATIENCE_SECONDS
    assert placed_next() == ["r3"]
    # Who comes now is the next, so a deadline that leaves one turn is kept.
    last = dispatcher.offer("last", until(clock.now + 2 * PATIENCE_SECONDS))
    assert isinstance(last, Held)
    held.append(last)
    clock.now += 1
    assert placed_next() == ["last"]
    assert dispatcher.withdraw(held[1]) is Refusal.FULL
    assert dispatcher.queued == 1


async def test_the_first_replica_is_waited_for() -> None:
    clock = Clock()
    woken: list[float] = []
    fleet = fleet_of(clock)
    dispatcher = Dispatcher(fleet, Random(0), clock, 2, lambda: woken.append(clock.now))
    assert dispatcher.offer("never", WORK) is Refusal.NO_ENDPOINTS
    dispatcher.hold_seconds = 600.0
    assert dispatcher.offer("models", Request(generates=False)) is Refusal.NO_ENDPOINTS
    assert woken == []
    first, second = dispatcher.offer("r1", WORK), dispatcher.offer("r2", until(clock.now + 1))
    assert isinstance(first, Held)
    assert isinstance(second, Held)
    assert first.without_endpoint
    assert len(woken) == 2
    assert dispatcher.offer("r3", WORK) is Refusal.FULL
    clock.now += 10 * EMPTY_GRACE_SECONDS
    dispatcher.pump()
    assert not first.placed.done(), "its own patience counts"
    assert dispatcher.withdraw(second) is Refusal.EXPIRED
    fleet.set_endpoints([endpoint("a")])
    dispatcher.pump()
    placed = first.placed.result()
    assert isinstance(placed, Placed)
    assert [e.name for e in placed.endpoints] == ["a"]
    assert dispatcher.queued == 0


async def test_the_last_replica_goes_while_requests_wait() -> None:
    clock = Clock()
    woken: list[float] = []
    dispatcher = full(clock, holds=600.0)
    dispatcher._on_wait = lambda: woken.append(clock.now)
    held = dispatcher.offer("r1", WORK)
    assert isinstance(held, Held)
    assert not held.without_endpoint
    assert woken == []
    dispatcher._fleet.set_endpoints([])
    for _ in range(5):
        clock.now += 1
        dispatcher.pump()
    assert len(woken) == 1
    assert not held.placed.done()


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["come", "leave", "end"]))))
def test_the_queue_is_bounded_by_bytes_too(events: list[tuple[int, str]]) -> None:
    """And counts those that it holds, whichever way they go."""

    async def run() -> None:
        clock = Clock()
        dispatcher = full(clock)
        waits: list[Held] = []
        for number, (megabytes, event) in enumerate(events):
            if event == "come":
                request = Request(generates=True, body_bytes=megabytes)
                answer = dispatcher.offer(f"r{number}", request)
                fits = sum(each.request.body_bytes for each in waits) + megabytes <= 8
                assert isinstance(answer, Held) == fits
                if isinstance(answer, Held):
                    waits.append(answer)
                else:
                    assert answer is Refusal.FULL
            elif event == "leave" and waits:
                dispatcher.withdraw(waits.pop())
            elif event == "end" and waits:
                clock.now += 1
                dispatcher._fleet.hear("a", report(clock.now, running=0, capacity=1))
                dispatcher.pump()
                late = clock.now - waits[0].since > PATIENCE_SECONDS
                assert waits.pop(-1 if late else 0).placed.done()
            assert dispatcher.held_bytes == sum(each.request.body_bytes for each in waits)
            assert dispatcher.queued == len(waits)

    with mock.patch.object(dispatch, "MAX_HELD_BYTES", 8):
        asyncio.run(run())
