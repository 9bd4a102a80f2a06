"""Where a guess is found: as looking token by token would, and in one search."""

import sys
from types import FrameType
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from fastgen_runtime.engine.lookup import MOST_GUESSED, Lookup


def guessed_by_looking(text: list[int]) -> tuple[int, ...]:
    """What `guess` says, found token by token."""
    for length in (3, 2):
        for at in range(len(text) - length - 1, -1, -1):
            if text[at : at + length] == text[-length:]:
                going_on = list(text)
                for place in range(at + length, at + length + MOST_GUESSED):
                    going_on.append(going_on[place])
                return tuple(going_on[len(text) :])
    return ()


ALIKE = st.sampled_from([0, 1, 0x100, 0x101, 0x10000, 0x10100, 0xD800, 0xDC00])
"""Numbers whose bytes look like one another's where they begin elsewhere."""


@given(st.lists(ALIKE, max_size=40))
@example([1] * 9 + [0x100] * 3)
def test_guesses_are_those_that_looking_token_by_token_finds(text: list[int]) -> None:
    assert Lookup().guess(text) == guessed_by_looking(text)


def test_a_long_text_is_searched_in_one_call_whatever_its_bytes() -> None:
    """131,072 ones hold the bytes of three 256s at each token."""
    text = [1] * 131_072 + [0x100] * 3
    lookup, lines = Lookup(), 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        guess = lookup.guess(text)
    finally:
        sys.settrace(None)
    assert guess == (0x100,) * MOST_GUESSED
    assert lines < 100
