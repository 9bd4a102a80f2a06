"""Prompts that were there when replicas crashed."""

import pytest
from balancer_books import Clock
from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.quarantine import (
    FIRST_SENTENCE_SECONDS,
    LINGER_SECONDS,
    LONGEST_SENTENCE_SECONDS,
    MOST_KEYS,
    SETTLE_SECONDS,
    SUSPECT_SECONDS,
    UNDECIDED_SECONDS,
    Flight,
    Quarantine,
    Suspicion,
    Verdict,
    blame,
    crashes_of,
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
    flight = Flight(POISON, ("a", "b"), 10.0, answered_by)
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
    assert verdict_of(suspicion, now + LONGEST_SENTENCE_SECONDS + SUSPECT_SECONDS + 1) is (
        Verdict.CLEAR
    )


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
