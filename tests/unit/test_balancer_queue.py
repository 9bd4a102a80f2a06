"""The queue: how fast it moves, who is told to come again, and who waits for the first replica."""

import asyncio
import math
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from balancer_books import Clock, endpoint, fleet_of, report
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer import dispatch
from fastgen_balancer.deadline import timeout_seconds
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
from fastgen_balancer.turnover import (
    JITTER,
    LONGEST_RETRY_SECONDS,
    SHORTEST_RETRY_SECONDS,
    UNKNOWN_RETRY_SECONDS,
    WINDOW_SECONDS,
    Turnover,
    retry_after_seconds,
    wait_seconds,
)

WORK = Request(generates=True, tokens=200)


@given(st.integers(0, 10**6), st.none() | st.floats(1e-4, 1e4), st.floats(0.0, 1e4), st.integers())
def test_the_time_to_come_again_is_bounded_and_near_the_wait(
    queued: int, rate: float | None, still: float, seed: int
) -> None:
    seconds = retry_after_seconds(queued, rate, still, Random(seed))
    assert SHORTEST_RETRY_SECONDS <= seconds <= math.ceil(LONGEST_RETRY_SECONDS * (1 + JITTER))
    wait = wait_seconds(queued, rate, still)
    shortest = UNKNOWN_RETRY_SECONDS if rate is None else SHORTEST_RETRY_SECONDS
    if shortest <= wait <= LONGEST_RETRY_SECONDS:
        assert wait <= seconds <= math.ceil(wait * (1 + JITTER))
    assert seconds == retry_after_seconds(queued, rate, still, Random(seed))


def test_a_longer_queue_is_a_later_return() -> None:
    late = [retry_after_seconds(n, 2.0, 0.0, Random(1)) for n in (0, 10, 40, 1000)]
    assert late == sorted(late)
    tries = {retry_after_seconds(40, 2.0, 0.0, Random(i)) for i in range(50)}
    assert len(tries) > 5, "not all at once"


def test_the_rate_is_that_of_this_queue_and_of_now() -> None:
    turnover = Turnover()
    assert turnover.rate(100.0) is None
    turnover.begin(100.0)
    assert turnover.rate(100.5) is None, "too short to say"
    for i in range(8):
        turnover.placed(100.0 + i / 2)
    turnover.begin(103.9)
    assert turnover.rate(104.0) == 2.0
    assert turnover.rate(104.0 + WINDOW_SECONDS) == 1 / (WINDOW_SECONDS + 0.5)
    turnover.end()
    turnover.begin(200.0)
    assert turnover.rate(202.0) is None


@pytest.mark.parametrize(
    ("placed", "now", "wait", "retry"),
    [
        ([], 0.5, 0.0, 5.0),
        ([], 1.1, 1.1, 5.0),
        ([], 9.0, 9.0, 9.0),
        ([], 300.0, 300.0, 60.0),
        ([0.2], 0.5, 0.0, 5.0),
        ([1.0], 2.0, 2.0, 20.0),
        ([1.0, 1.5, 1.9], 2.0, 2 / 3, 20 / 3),
        ([8.0], 8.0, 8.0, 60.0),
        ([7.0 + i / 50 for i in range(50)], 8.0, 8 / 50, 80 / 50),
        ([1.0, 2.0], 10.0, 5.0, 50.0),
        ([1.0, 2.0], 11.5, 10.0, 60.0),
        ([1.0, 2.0], 14.0, 12.0, 60.0),
        ([1.0, 2.0], 302.0, 300.0, 60.0),
        ([1.0, 301.5], 302.0, 10.0, 60.0),
    ],
)
def test_what_a_queue_that_began_at_0_tells(
    placed: list[float], now: float, wait: float, retry: float
) -> None:
    """wait: of the next one; retry: of who is refused while nine wait, the least."""
    turnover = Turnover()
    turnover.begin(0.0)
    for at in placed:
        turnover.placed(at)
    rate, still = turnover.rate(now), turnover.still_seconds(now)
    assert rate is None or rate > 0
    assert wait_seconds(0, rate, still) == pytest.approx(wait)
    told = [retry_after_seconds(9, rate, still, Random(i)) for i in range(200)]
    assert math.ceil(retry) <= min(told) <= math.ceil(retry * 1.1)
    assert max(told) <= math.ceil(retry * (1 + JITTER))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"grpc-timeout": "5S"}, 5),
        ({"grpc-timeout": "2M"}, 120),
        ({"grpc-timeout": "1H"}, 3600),
        ({"grpc-timeout": "250m"}, 0.25),
        ({"grpc-timeout": "500000u"}, 0.5),
        ({"grpc-timeout": "99999999n"}, 0.099999999),
        ({"grpc-timeout": "123456789S"}, None),
        ({"grpc-timeout": "5"}, None),
        ({"grpc-timeout": "-5S"}, None),
        ({"x-request-timeout": "2.5"}, 2.5),
        ({"x-stainless-read-timeout": "600"}, 600),
        ({"x-stainless-read-timeout": "600", "x-request-timeout": "3"}, 3),
        ({"x-request-timeout": "0"}, None),
        ({"x-request-timeout": "1e9"}, None),
        ({"x-request-timeout": "inf"}, None),
        ({"x-request-timeout": "١"}, None),
    ],
)
def test_what_a_client_tells_of_its_patience(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert timeout_seconds(headers) == seconds


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
    assert dispatcher.withdraw(second) is Refusal.NO_ENDPOINTS
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
