"""The books: what each endpoint holds, who may be picked, how the queue moves."""

import asyncio
from random import Random

from balancer_books import Clock, endpoint, fleet_of, report

from fastgen_balancer.account import (
    EXPECTED_OUTPUT_TOKENS,
    FRESH_SECONDS,
    LOST_AFTER_SECONDS,
    MAX_AGE_SECONDS,
    Account,
    Sent,
)
from fastgen_balancer.dispatch import EMPTY_GRACE_SECONDS, Dispatcher, Held, Placed
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.health import FAILURES_TO_EJECT, FIRST_EJECTION_SECONDS
from fastgen_balancer.pick import Refusal, Request
from fastgen_balancer.standing import UNREACHABLE_AFTER

WORK = Request(generates=True, tokens=200)


def test_a_report_counts_what_was_sent_before_it_once() -> None:
    account = Account()
    account.send(Sent("old", 100, sent_at=10.0))
    account.hear(report(11.0, running=3, owed_tokens=500))
    assert account.requests(11.0) == 3
    account.send(Sent("new", 250, sent_at=11.5))
    assert account.requests(11.5) == 4
    assert account.tokens(11.5) == 500 + 3 * EXPECTED_OUTPUT_TOKENS // 2 + 250
    account.end("old")
    assert account.requests(11.6) == 3
    account.end("new")
    assert account.requests(11.7) == 2
    account.hear(report(12.0, running=2))
    assert account.requests(12.0) == 2


def test_a_stale_report_gives_way_to_our_own_count() -> None:
    account = Account()
    account.hear(report(10.0, running=50, owed_tokens=9999))
    account.send(Sent("a", 100, sent_at=10.5))
    late = 10.0 + FRESH_SECONDS + 0.1
    assert not account.is_fresh(late)
    assert (account.requests(late), account.tokens(late)) == (1, 100)


def test_requests_whose_end_was_never_told_are_forgotten() -> None:
    account = Account()
    for i in range(3):
        account.send(Sent(f"r{i}", 100, sent_at=float(i)))
    for second in range(8, 13):
        account.hear(report(float(second), running=1))
        assert account.forget_lost(float(second)) == ()
    account.hear(report(14.0, running=1))
    assert [s.id for s in account.forget_lost(14.0)] == ["r0", "r1"], "the oldest two"
    assert list(account.open) == ["r2"]


def test_a_pause_in_the_excess_begins_anew() -> None:
    account = Account()
    account.send(Sent("a", 100, sent_at=0.0))
    for second, running in ((6.0, 0), (9.0, 1), (10.0, 0), (14.0, 0)):
        account.hear(report(second, running=running))
        assert account.forget_lost(second) == ()


def test_without_a_report_only_age_forgets() -> None:
    account = Account()
    account.send(Sent("a", 100, sent_at=0.0))
    assert account.forget_lost(MAX_AGE_SECONDS - 1) == ()
    assert len(account.forget_lost(MAX_AGE_SECONDS + 1)) == 1


def test_terminating_and_draining_endpoints_are_not_picked() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b", "c")
    fleet.set_endpoints([endpoint("a", terminating=True), endpoint("b"), endpoint("c")])
    fleet.hear("b", report(clock.now, draining=True))
    assert [c.name for c in fleet.candidates()] == ["c"]
    fleet.set_endpoints([endpoint("a", terminating=True)])
    assert fleet.candidates() == []


def test_a_silent_endpoint_is_left_out_while_another_speaks() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    for _ in range(UNREACHABLE_AFTER):
        fleet.hear_nothing("a")
    assert [c.name for c in fleet.candidates()] == ["b"]
    for _ in range(UNREACHABLE_AFTER):
        fleet.hear_nothing("b")
    assert [c.name for c in fleet.candidates()] == ["a", "b"], "the fault may be ours"
    fleet.hear("b", report(clock.now))
    assert [c.name for c in fleet.candidates()] == ["b"]


def test_ejection_ends_with_one_probe() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")

    def names() -> list[str]:
        return [c.name for c in fleet.candidates()]

    for _ in range(FAILURES_TO_EJECT):
        assert names() == ["a", "b"]
        fleet.answered("a", well=False)
    assert names() == ["b"]
    clock.now += FIRST_EJECTION_SECONDS
    assert names() == ["a", "b"]
    fleet.send("a", Sent("probe", 1, clock.now))
    assert names() == ["b"], "one probe at a time"
    fleet.answered("a", well=False)
    clock.now += FIRST_EJECTION_SECONDS
    assert names() == ["b"], "the second ejection lasts longer"
    clock.now += FIRST_EJECTION_SECONDS
    fleet.send("a", Sent("probe-2", 1, clock.now))
    fleet.answered("a", well=True)
    assert names() == ["a", "b"]


def test_a_probe_that_is_never_heard_of_again_fails() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    for _ in range(FAILURES_TO_EJECT):
        fleet.answered("a", well=False)
    clock.now += FIRST_EJECTION_SECONDS
    fleet.send("a", Sent("probe", 1, clock.now))
    for _ in range(15):
        clock.now += 1
        fleet.hear("a", report(clock.now))
        fleet.forget_lost()
    assert fleet.in_flight == 0
    assert [c.name for c in fleet.candidates()] == ["a", "b"]


def test_a_retry_moves_the_request() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    fleet.send("a", Sent("r", 100, clock.now))
    fleet.move("r", "b")
    assert {c.name: c.requests for c in fleet.candidates()} == {"a": 0, "b": 1}
    fleet.move("r", "unknown")
    assert fleet.end("r") == "b"
    assert fleet.end("r") is None
    assert fleet.in_flight == 0


def test_streams_of_an_endpoint_that_left_end_by_log_or_by_time() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    fleet.send("a", Sent("heard", 1, clock.now))
    fleet.send("a", Sent("lost", 1, clock.now))
    fleet.set_endpoints([endpoint("b")])
    assert fleet.end("heard") == "a"
    assert fleet.in_flight == 1
    clock.now += LOST_AFTER_SECONDS + 1
    assert fleet.forget_lost() == 1
    assert fleet.in_flight == 0


def test_another_address_is_another_replica() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    fleet.send("a", Sent("r", 100, clock.now))
    fleet.hear("a", report(clock.now, running=2, draining=True))
    for _ in range(UNREACHABLE_AFTER):
        fleet.hear_nothing("a")
        fleet.answered("a", well=False)
    assert [c.name for c in fleet.candidates()] == ["b"]
    fleet.set_endpoints([endpoint("a", host="10.0.0.2"), endpoint("b")])
    found = {c.name: c for c in fleet.candidates()}
    assert set(found) == {"a", "b"}
    assert not found["a"].fresh
    assert found["a"].requests == 1, "its stream is still open at Envoy"
    assert fleet.end("r") == "a"


def dispatcher_of(fleet: Fleet, clock: Clock, max_queued: int = 2) -> Dispatcher:
    return Dispatcher(fleet, Random(0), clock, max_queued)


def test_what_is_forgotten_makes_room() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a")
    fleet.send("a", Sent("lost", 10, clock.now))
    assert [c.requests for c in fleet.candidates()] == [1]
    clock.now += MAX_AGE_SECONDS + 1
    assert fleet.forget_lost() == 1
    assert [c.requests for c in fleet.candidates()] == [0]


def test_an_address_tells_the_endpoint() -> None:
    fleet = fleet_of(Clock(), "a")
    fleet.set_endpoints([endpoint("a", host="10.0.0.1"), endpoint("b", host="10.0.0.2")])
    assert fleet.name_at("10.0.0.1:8000") == "a"
    assert fleet.name_at("10.0.0.2:9000") == "b"
    fleet.set_endpoints([endpoint("b", host="10.0.0.3")])
    assert fleet.name_at("10.0.0.2:9000") is None
    assert fleet.name_at("10.0.0.3:9000") == "b"


async def test_first_come_first_served_and_no_more_than_the_queue_holds() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a")
    fleet.hear("a", report(clock.now, capacity=1))
    dispatcher = dispatcher_of(fleet, clock)
    assert isinstance(dispatcher.offer("r1", WORK), Placed)
    second, third = dispatcher.offer("r2", WORK), dispatcher.offer("r3", WORK)
    assert isinstance(second, Held)
    assert isinstance(third, Held)
    assert dispatcher.offer("r4", WORK) is Refusal.FULL
    assert isinstance(dispatcher.offer("models", Request(generates=False)), Placed)

    fleet.end("r1")
    assert isinstance(dispatcher.offer("r5", WORK), Held)
    assert dispatcher.queued == 2
    assert second.placed.done(), "the one that waits goes before the one that comes"
    assert not third.placed.done()


async def test_a_client_that_leaves_gives_its_place_away() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a")
    fleet.hear("a", report(clock.now, running=1, capacity=1))
    dispatcher = dispatcher_of(fleet, clock)
    first, second = dispatcher.offer("r1", WORK), dispatcher.offer("r2", WORK)
    assert isinstance(first, Held)
    assert isinstance(second, Held)
    assert dispatcher.withdraw(first) is Refusal.FULL
    clock.now += 1
    fleet.hear("a", report(clock.now, capacity=1))
    dispatcher.pump()
    assert second.placed.done()
    assert dispatcher.queued == 0
    assert fleet.in_flight == 1


async def test_without_endpoints_requests_are_refused_at_once() -> None:
    clock = Clock()
    dispatcher = dispatcher_of(fleet_of(clock), clock)
    assert dispatcher.offer("r1", WORK) is Refusal.NO_ENDPOINTS
    assert dispatcher.queued == 0


async def test_a_new_endpoint_wakes_the_queue() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a")
    fleet.hear("a", report(clock.now, running=1, capacity=1))
    dispatcher = dispatcher_of(fleet, clock)
    held = dispatcher.offer("r1", WORK)
    assert isinstance(held, Held)
    fleet.set_endpoints([endpoint("a"), endpoint("b")])
    dispatcher.pump()
    placed = await asyncio.wait_for(held.placed, 1)
    assert isinstance(placed, Placed)
    assert [e.name for e in placed.endpoints] == ["b"]


async def test_the_queue_does_not_outlive_the_endpoints_for_long() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a")
    fleet.hear("a", report(clock.now, running=1, capacity=1))
    dispatcher = dispatcher_of(fleet, clock)

    def hold(request_id: str) -> Held:
        held = dispatcher.offer(request_id, WORK)
        assert isinstance(held, Held)
        return held

    first = hold("r1")
    fleet.set_endpoints([])
    dispatcher.pump()
    assert dispatcher.offer("r2", WORK) is Refusal.NO_ENDPOINTS, "at once, though one waits"
    clock.now += EMPTY_GRACE_SECONDS - 0.1
    dispatcher.pump()
    assert not first.placed.done()
    fleet.set_endpoints([endpoint("b")])
    fleet.hear("b", report(clock.now, running=1, capacity=1))
    dispatcher.pump()
    second = hold("r3")
    clock.now += EMPTY_GRACE_SECONDS
    fleet.set_endpoints([])
    dispatcher.pump()
    assert not first.placed.done(), "another absence, another grace"
    clock.now += EMPTY_GRACE_SECONDS
    dispatcher.pump()
    assert [held.placed.result() for held in (first, second)] == [Refusal.NO_ENDPOINTS] * 2
    assert dispatcher.queued == 0
