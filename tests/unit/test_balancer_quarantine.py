"""Prompts that were there when replicas crashed."""

import pytest
from balancer_books import Clock
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.quarantine import (
    LINGER_SECONDS,
    MOST_FLIGHTS,
    MOST_KEYS,
    SETTLE_SECONDS,
    UNDECIDED_SECONDS,
    Quarantine,
)
from fastgen_balancer.suspicion import (
    CRASHES_TO_CONVICT,
    FIRST_SENTENCE_SECONDS,
    LONGEST_SENTENCE_SECONDS,
    MOST_FORMS,
    ON_RECORD_SECONDS,
    SAME_CRASH_SECONDS,
    SUSPECT_SECONDS,
    Flight,
    Suspicion,
    Verdict,
    blame,
    crashes_of,
    merge,
    verdict_of,
)

POISON, OTHER = b"poison", b"other"
NAMES = st.sampled_from("abc")


@pytest.mark.parametrize(
    ("crashed", "answered_by", "expected"),
    [
        ({}, None, ""),
        ({"a": 11.0}, None, "a"),
        ({"a": 9.0}, None, ""),
        ({"b": 11.0}, None, ""),
        ({"a": 11.0, "b": 12.0}, None, "ab"),
        ({"a": 11.3, "b": 11.0}, None, "ab"),
        ({"a": 12.0, "b": 11.0}, None, "a"),
        ({"a": 11.0, "b": 9.0}, None, "a"),
        ({"a": 11.0, "c": 11.0}, "b", "a"),
        ({"b": 11.0}, "b", "b"),
        ({"a": 11.0, "b": 12.0}, "b", "ab"),
        ({"a": 11.0, "b": 12.0}, "a", "a"),
    ],
)
def test_at_which_crashes_a_request_was_there(
    crashed: dict[str, float], answered_by: str | None, expected: str
) -> None:
    """In whatever order two crashes are noticed that a poll lies between.

    Of those before it was sent it knows nothing, and of the other endpoint's before its own one.
    """
    flight = Flight(POISON, ("a", "b"), 10.0, answered_by=answered_by)
    assert "".join(name for name, _ in crashes_of(flight, crashed)) == expected


@given(st.lists(st.tuples(NAMES, st.floats(0, 4000)), max_size=12))
def test_a_sentence_needs_two_crashes_and_ends(crashes: list[tuple[str, float]]) -> None:
    suspicion, now, seen = Suspicion(), 1000.0, set()
    for name, pause in crashes:
        now += pause
        before = suspicion
        suspicion = blame(suspicion, (name, now), now)
        seen.add((name, now))
        if suspicion.sentences > before.sentences:
            assert len(seen) >= 2
            assert now < suspicion.until <= now + LONGEST_SENTENCE_SECONDS
            assert verdict_of(suspicion, now) is Verdict.CONVICTED
        assert blame(suspicion, (name, now), now) == suspicion, "one crash counts once"
    later = now + LONGEST_SENTENCE_SECONDS + ON_RECORD_SECONDS + 1
    assert verdict_of(suspicion, later) is Verdict.CLEAR


def crash_both(quarantine: Quarantine, request_id: str = "r") -> None:
    quarantine.sent(request_id, POISON, ("a", "b"))
    quarantine.failed(request_id)
    quarantine.ended(request_id, well=False)
    quarantine.crashed("b")
    quarantine.crashed("a")


def test_a_prompt_that_crashed_a_replica_and_its_retry_is_refused_for_a_while() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    assert quarantine.verdict(POISON) is Verdict.CLEAR
    quarantine.sent("other", OTHER, ("c", "a"))
    crash_both(quarantine)
    assert quarantine.verdict(POISON) is Verdict.CONVICTED
    assert quarantine.convicted == 1
    assert quarantine.verdict(OTHER) is Verdict.CLEAR, "it was elsewhere"
    assert quarantine.seconds_left(POISON) == FIRST_SENTENCE_SECONDS

    clock.now += FIRST_SENTENCE_SECONDS
    assert quarantine.verdict(POISON) is Verdict.SUSPECT, "one more chance, without a retry"
    quarantine.sent("again", POISON, ("c",))
    clock.now += 1
    quarantine.crashed("c")
    assert quarantine.verdict(POISON) is Verdict.CONVICTED
    assert quarantine.seconds_left(POISON) == 2 * FIRST_SENTENCE_SECONDS
    clock.now += 2 * FIRST_SENTENCE_SECONDS + SUSPECT_SECONDS + 1
    assert quarantine.verdict(POISON) is Verdict.SUSPECT, "one crash is enough for a day"
    clock.now += ON_RECORD_SECONDS
    assert quarantine.verdict(POISON) is Verdict.CLEAR


def test_until_the_crashes_are_noticed_it_waits() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("r", POISON, ("a", "b"))
    quarantine.failed("r")
    quarantine.ended("r", well=False)
    assert quarantine.verdict(POISON) is Verdict.UNDECIDED
    quarantine.crashed("a")
    assert quarantine.verdict(POISON) is Verdict.UNDECIDED
    clock.now += UNDECIDED_SECONDS
    assert quarantine.verdict(POISON) is Verdict.SUSPECT
    quarantine.crashed("b")
    assert quarantine.verdict(POISON) is Verdict.CONVICTED
    assert quarantine.verdict(OTHER) is Verdict.CLEAR


def test_a_good_end_clears_who_was_there_by_chance() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    for i in range(3):
        quarantine.sent(f"r{i}", bytes([i]), ("a", "b"))
    quarantine.crashed("a")
    assert {quarantine.verdict(bytes([i])) for i in range(3)} == {Verdict.SUSPECT}
    quarantine.answered("r0", "b")
    quarantine.ended("r0", well=True)
    assert quarantine.verdict(bytes([0])) is Verdict.SUSPECT, "its replica may yet have died"
    clock.now += SETTLE_SECONDS + 0.1
    quarantine.crashed("b")
    verdicts = [quarantine.verdict(bytes([i])) for i in range(3)]
    assert verdicts == [Verdict.CLEAR, Verdict.CONVICTED, Verdict.CONVICTED]


def test_an_end_in_good_order_before_the_crash_is_none() -> None:
    """An engine has died, its front ends the streams properly and then goes, too."""
    clock = Clock()
    quarantine = Quarantine(clock)
    for name in "ab":
        quarantine.sent(name, POISON, (name, "c"))
        quarantine.answered(name, name)
        quarantine.ended(name, well=True)
        clock.now += 0.5
        quarantine.crashed(name)
        clock.now += SETTLE_SECONDS
    assert quarantine.verdict(POISON) is Verdict.CONVICTED


def test_a_crash_long_after_its_end_is_none_of_its() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("r", POISON, ("a", "b"))
    quarantine.ended("r", well=False)
    clock.now += LINGER_SECONDS + 1
    quarantine.crashed("a")
    assert quarantine.verdict(POISON) is Verdict.CLEAR


def test_one_crash_under_many_copies_is_one() -> None:
    quarantine = Quarantine(Clock())
    for i in range(5):
        quarantine.sent(f"r{i}", POISON, ("a", "b"))
    quarantine.crashed("a")
    assert quarantine.verdict(POISON) is Verdict.SUSPECT


def test_memory_is_bounded() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    for i in range(MOST_KEYS + 10):
        key = i.to_bytes(4)
        quarantine.sent("r", key, ("a", "b"))
        clock.now += 0.001
        quarantine.crashed("a")
        quarantine.crashed("b")
        quarantine.failed("r")
    assert quarantine.convicted == MOST_KEYS
    assert quarantine.verdict((0).to_bytes(4)) is Verdict.CLEAR
    assert quarantine.verdict((MOST_KEYS + 9).to_bytes(4)) is Verdict.CONVICTED


def test_only_a_request_as_it_was_at_the_crash_acquits_its_prompt() -> None:
    """Who alternates one that crashes with one that does not would crash replicas for ever."""
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("crash", POISON, ("a", "b"), form=b"128 choices")
    quarantine.crashed("a")
    for form, verdict in ((b"1 choice", Verdict.SUSPECT), (b"128 choices", Verdict.CLEAR)):
        quarantine.sent("again", POISON, ("b",), form)
        quarantine.answered("again", "b")
        quarantine.ended("again", well=True)
        clock.now += SETTLE_SECONDS + 0.1
        assert quarantine.verdict(POISON) is verdict


def test_a_good_end_before_the_crash_is_no_proof() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("well", POISON, ("a", "b"))
    quarantine.answered("well", "a")
    quarantine.ended("well", well=True)
    quarantine.sent("crash", POISON, ("b", "a"))
    clock.now += SETTLE_SECONDS / 2
    quarantine.crashed("b")
    clock.now += SETTLE_SECONDS
    assert quarantine.verdict(POISON) is Verdict.SUSPECT


def test_all_copies_of_a_suspect_run_at_one_endpoint() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("before", POISON, ("b", "c"))
    quarantine.sent("r", POISON, ("a", "b"))
    assert quarantine.trial(POISON) is None
    quarantine.crashed("a")
    assert quarantine.trial(POISON) is None, "those of before the crash are no trial"
    quarantine.sent("one", POISON, ("c",))
    quarantine.sent("two", POISON, ("c",))
    quarantine.sent("other", OTHER, ("d",))
    assert quarantine.trial(POISON) == "c"
    assert quarantine.trial(OTHER) is None
    quarantine.ended("one", well=False)
    quarantine.ended("one", well=False)
    assert quarantine.trial(POISON) == "c"
    quarantine.sent("two", POISON, ("c",))
    quarantine.ended("two", well=True)
    assert quarantine.trial(POISON) is None


def test_a_stream_that_broke_leaves_its_prompt_undecided_until_its_crash_is_noticed() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.sent("r", POISON, ("a", "b"))
    quarantine.answered("r", "a")
    quarantine.failed("r")
    quarantine.ended("r", well=False)
    assert quarantine.verdict(POISON) is Verdict.UNDECIDED
    clock.now += 0.2
    quarantine.crashed("a")
    assert quarantine.verdict(POISON) is Verdict.SUSPECT
    # Another one's end is told only now.
    quarantine.sent("s", OTHER, ("b", "a"))
    quarantine.answered("s", "b")
    quarantine.crashed("b")
    quarantine.failed("s")
    assert quarantine.verdict(OTHER) is Verdict.SUSPECT


suspicions = st.lists(st.tuples(NAMES, st.floats(0, 2000), st.binary(max_size=2)), max_size=6).map(
    lambda events: _history(events)
)


def _history(events: list[tuple[str, float, bytes]]) -> Suspicion:
    suspicion = Suspicion()
    for name, at, form in sorted(events, key=lambda event: event[1]):
        suspicion = blame(suspicion, (name, at), at, form)
    return suspicion


@given(suspicions, suspicions)
def test_what_two_pods_know_is_the_same_whichever_hears_the_other(
    one: Suspicion, other: Suspicion
) -> None:
    both = merge(one, other)
    assert both == merge(other, one)
    assert merge(both, other) == merge(both, one) == both
    assert len(both.forms) <= MOST_FORMS
    if len({name for name, _ in both.crashes}) >= CRASHES_TO_CONVICT:
        assert both.sentences >= 1
    assert both.sentences >= max(one.sentences, other.sentences)
    assert both.until >= max(one.until, other.until)


@given(suspicions, st.floats(-0.9 * SAME_CRASH_SECONDS, 0.9 * SAME_CRASH_SECONDS))
def test_a_crash_that_two_pods_notice_is_one(known: Suspicion, apart: float) -> None:
    once = Suspicion(frozenset([("z", 5000.0)]), frozenset([b"f"]), 5000.0)
    late = Suspicion(frozenset([("z", 5000.0 + apart)]), frozenset([b"f"]), 5000.0 + apart)
    assert merge(once, late).sentences == 0
    assert len(merge(merge(known, once), late).crashes) == len(known.crashes) + 1


def test_flights_whose_end_is_never_told_are_forgotten_with_their_trials() -> None:
    quarantine = Quarantine(Clock())
    quarantine.sent("r", POISON, ("a", "b"))
    quarantine.crashed("a")
    quarantine.sent("lost", POISON, ("b",))
    for i in range(MOST_FLIGHTS):
        quarantine.sent(f"r{i}", OTHER, ("c",))
    assert quarantine.trial(POISON) is None
