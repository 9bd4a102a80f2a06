"""Slow, silent and new endpoints: who is left out, who gets less, and for how long."""

from statistics import median

from balancer_books import Clock, endpoint, fleet_of, report
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.account import Sent
from fastgen_balancer.fleet import Events, Fleet
from fastgen_balancer.health import FIRST_EJECTION_SECONDS
from fastgen_balancer.latency import (
    LARGEST_SHARE,
    MIN_SAMPLES,
    NEWEST,
    SLOW_FACTOR,
    SLOW_MARGIN_SECONDS,
    SMALL_PROMPT_TOKENS,
    Times,
    slow,
)
from fastgen_balancer.standing import (
    FIRST_WEIGHT,
    SILENT_SECONDS,
    SLOW_START_SECONDS,
    weight_of,
)

SECONDS = st.lists(st.floats(0, 100), max_size=NEWEST)
TIMES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        lambda answered, silent: Times(
            [(float(i), s) for i, s in enumerate(answered)],
            [(50.0 + i, s) for i, s in enumerate(silent)],
        ),
        SECONDS,
        SECONDS,
    ),
)


def answered(*seconds: float) -> Times:
    return Times([(float(i), s) for i, s in enumerate(seconds)], [])


@given(TIMES, st.integers(0, 8))
def test_who_is_ejected_is_slow_beside_the_others(times: dict[str, Times], out: int) -> None:
    total = len(times) + out
    found = slow(times, out, total)
    assert len(found) + out <= max(out, 1, total * LARGEST_SHARE)
    for name in found:
        medians = [
            median(s for _, s in each.answered)
            for other, each in times.items()
            if other != name and len(each.answered) >= MIN_SAMPLES
        ]
        everything = [s for _, s in (*times[name].answered, *times[name].silent)]
        assert max(everything) > SLOW_FACTOR * median(medians) + SLOW_MARGIN_SECONDS


@given(st.integers(1, 20), st.floats(0, 100), st.floats(0, SLOW_MARGIN_SECONDS))
def test_a_slowness_of_all_ejects_nobody(size: int, seconds: float, spread: float) -> None:
    times = {str(i): answered(*[seconds + spread * i / size] * MIN_SAMPLES) for i in range(size)}
    assert slow(times, 0, size) == []


def test_one_slow_among_quick_ones() -> None:
    quick = {name: answered(*[0.2] * MIN_SAMPLES) for name in "abcde"}
    limit = SLOW_FACTOR * 0.2 + SLOW_MARGIN_SECONDS
    assert slow(quick | {"z": answered(*[limit - 0.01] * 9)}, 0, 6) == []
    assert slow(quick | {"z": answered(*[limit + 0.01] * 9)}, 0, 6) == ["z"]
    assert slow(quick | {"z": answered(*[limit + 0.01] * (MIN_SAMPLES - 1))}, 0, 6) == []
    two = quick | {"y": answered(*[60.0] * 9), "z": answered(*[50.0] * 9)}
    assert slow(two, 0, 7) == ["y", "z"], "the slowest first"
    assert slow(two, 1, 7) == ["y"]
    assert slow(two, 2, 7) == []
    assert slow({"a": quick["a"], "z": answered(*[50.0] * 9)}, 0, 2) == ["z"], "one of two"
    assert slow({"a": quick["a"], "z": answered(*[50.0] * 9)}, 1, 2) == []


def test_silence_counts_once_it_is_longer_than_the_limit() -> None:
    quick = {name: answered(*[0.2] * MIN_SAMPLES) for name in "abc"}
    known = [(float(i), 0.2) for i in range(NEWEST)]
    silent = [(100.0 + i, 9.0) for i in range(NEWEST)]
    assert slow(quick | {"z": Times(known, silent[:4])}, 0, 4) == []
    assert slow(quick | {"z": Times(known, silent[:6])}, 0, 4) == ["z"]
    young = [(at, 1.5) for at, _ in silent]
    assert slow(quick | {"z": Times(known, young)}, 0, 4) == [], "these may still be quick"


def serve(fleet: Fleet, clock: Clock, name: str, seconds: float, tokens: int = 100) -> None:
    """A request that has its first byte after so long, and ends at once."""
    fleet.send(name, Sent("r", tokens, clock.now - seconds))
    fleet.first_byte("r")
    fleet.answered(name, well=True)
    fleet.end("r")


def names(fleet: Fleet) -> list[str]:
    return [c.name for c in fleet.candidates()]


def test_a_slow_endpoint_comes_back_when_its_probe_is_quick() -> None:
    clock = Clock()
    told: list[tuple[str, bool]] = []
    events = Events(ejected=lambda name, is_slow: told.append((name, is_slow)))
    fleet = Fleet(clock, 8, events)
    fleet.set_endpoints([endpoint(name) for name in "abc"])
    for _ in range(MIN_SAMPLES):
        serve(fleet, clock, "a", 0.1)
        serve(fleet, clock, "b", 0.1)
        serve(fleet, clock, "c", 5.0)
    fleet.send("c", Sent("long", 1, clock.now))
    fleet.eject_slow()
    assert names(fleet) == ["a", "b"]
    assert told == [("c", True)]
    fleet.answered("c", well=True)
    assert names(fleet) == ["a", "b"], "that it answers was known"

    clock.now += FIRST_EJECTION_SECONDS
    assert names(fleet) == ["a", "b", "c"]
    fleet.send("c", Sent("probe", 1, clock.now))
    assert names(fleet) == ["a", "b"]
    clock.now += 6
    fleet.first_byte("probe")
    assert names(fleet) == ["a", "b"], "still slow, and out for longer"
    clock.now += 2 * FIRST_EJECTION_SECONDS
    fleet.send("c", Sent("left", 1, clock.now))
    fleet.end("left")
    assert names(fleet) == ["a", "b", "c"], "a client that leaves blocks no other probe"
    fleet.send("c", Sent("quick", 1, clock.now))
    clock.now += 0.1
    fleet.first_byte("quick")
    fleet.eject_slow()
    assert names(fleet) == ["a", "b", "c"]
    assert told == [("c", True)] * 2
    assert fleet.candidates()[2].weight < 1, "and begins slowly"


def test_a_long_prompt_may_take_long() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    for _ in range(NEWEST):
        serve(fleet, clock, "a", 0.1)
        serve(fleet, clock, "b", 5.0, tokens=SMALL_PROMPT_TOKENS * 20)
    fleet.eject_slow()
    assert names(fleet) == ["a", "b"]


def test_a_hung_engine_is_seen_by_what_it_owes() -> None:
    """Its front still tells its load; requests there have no first byte."""
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    for _ in range(NEWEST):
        serve(fleet, clock, "a", 0.1)
        serve(fleet, clock, "b", 0.1)
    for i in range(6):
        fleet.send("b", Sent(f"hung-{i}", 100, clock.now))
    clock.now += 1
    fleet.eject_slow()
    assert names(fleet) == ["a", "b"]
    clock.now += 1
    fleet.eject_slow()
    assert names(fleet) == ["a"]


def test_a_hung_endpoint_is_out_within_three_seconds() -> None:
    """Packets to it are dropped: its word is missing, calls time out after a second."""
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    fleet.hear("b", report(clock.now))
    began = clock.now
    clock.now += 1.25
    fleet.hear("a", report(clock.now))
    fleet.hear_nothing("b")
    assert names(fleet) == ["a", "b"], "one late answer is no silence"
    clock.now = began + SILENT_SECONDS
    assert names(fleet) == ["a"]
    assert SILENT_SECONDS < 3
    fleet.hear("b", report(clock.now))
    assert names(fleet) == ["a", "b"]
    assert fleet.candidates()[1].weight == FIRST_WEIGHT
    clock.now += SLOW_START_SECONDS
    assert fleet.candidates()[1].weight == 1


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_weights_only_grow(age: float, more: float) -> None:
    assert 0 < FIRST_WEIGHT <= weight_of(age) <= weight_of(age + more) <= 1
    assert weight_of(SLOW_START_SECONDS) == 1


def test_new_endpoints_begin_slowly_and_the_first_ones_do_not() -> None:
    clock = Clock()
    fleet = fleet_of(clock, "a", "b")
    assert [c.weight for c in fleet.candidates()] == [1, 1]
    fleet.set_endpoints([endpoint("a"), endpoint("b"), endpoint("c")])
    assert [c.weight for c in fleet.candidates()] == [1, 1, FIRST_WEIGHT]
    clock.now += SLOW_START_SECONDS / 2
    fleet.set_endpoints([endpoint("a"), endpoint("b", host="10.0.0.9"), endpoint("c")])
    assert [c.weight for c in fleet.candidates()] == [1, FIRST_WEIGHT, 0.5]


def test_who_crashed_is_told_once() -> None:
    clock = Clock()
    crashed: list[str] = []
    fleet = Fleet(clock, 8, Events(crashed=crashed.append))
    fleet.set_endpoints([endpoint(name) for name in "abcd"])
    fleet.hear_nothing("a", is_gone=True)
    for name in "abcd":
        fleet.hear(name, report(clock.now))
    fleet.hear("d", report(clock.now, draining=True))
    assert crashed == [], "it was never there"
    for _ in range(3):
        fleet.hear_nothing("a", is_gone=True)
        fleet.hear_nothing("b")
        fleet.hear_nothing("d", is_gone=True)
        fleet.hear_nothing("gone", is_gone=True)
    assert crashed == ["a"], "not who is silent, nor who was to leave"


def test_a_call_that_timed_out_hides_no_crash() -> None:
    clock = Clock()
    crashed: list[str] = []
    fleet = Fleet(clock, 8, Events(crashed=crashed.append))
    fleet.set_endpoints([endpoint(name) for name in "ab"])
    for name in "ab":
        fleet.hear(name, report(clock.now))
        fleet.hear_nothing(name)
    fleet.hear_nothing("a", is_gone=True)
    assert crashed == ["a"]
    clock.now += SILENT_SECONDS
    fleet.hear_nothing("b", is_gone=True)
    assert crashed == ["a"], "a link that was cut long before, not a process"
    fleet.hear("a", report(clock.now))
    fleet.hear_nothing("a", is_gone=True)
    assert crashed == ["a", "a"], "it was back"
