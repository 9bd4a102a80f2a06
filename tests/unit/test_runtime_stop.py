"""Stop strings are found wherever tokens end, and never shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_runtime.front.stop import StopStrings


def stopped(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    shown = "".join(map(matcher.push, pieces))
    return shown + ("" if matcher.matched is not None else matcher.flush()), matcher.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        (["\n\n"], ["one\n", "\ntwo"], "one", "\n\n"),
        (["END"], ["xE", "N", "Dy"], "x", "END"),
        (["END"], ["xEN", "x"], "xENx", None),
        (["aab"], ["aaa", "ab"], "aa", "aab"),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["abcd", "bc"], ["a", "b", "c", "d"], "a", "bc"),
        (["c", "bc"], ["abc"], "a", "bc"),
        (["。"], ["今日", "は。", "x"], "今日は", "。"),
        (["END"], ["END"], "", "END"),
        ([], ["anything"], "anything", None),
        (["xyz"], ["ends with xy"], "ends with xy", None),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], shown: str, matched: str | None) -> None:
    assert stopped(stops, pieces) == (shown, matched)


@settings(max_examples=500)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_stopping_does_not_depend_on_how_the_text_is_cut(
    stops: list[str], pieces: list[str]
) -> None:
    text = "".join(pieces)
    shown, matched = stopped(stops, pieces)
    assert (shown, matched) == stopped(stops, list(text)) == stopped(stops, [text])
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        assert matched is not None
        assert len(shown) + len(matched) == min(ends)
        assert not any(stop in shown for stop in stops)
    else:
        assert shown == text


@settings(max_examples=300)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.text("abc", max_size=12),
    st.lists(st.text("abc", max_size=3), max_size=6),
)
def test_a_match_that_comes_too_early_is_text(
    stops: list[str], early: str, pieces: list[str]
) -> None:
    """The first match that ends after the early text counts, wherever it begins."""
    matcher = StopStrings(stops)
    shown = "".join(matcher.push(letter, may_match=False) for letter in early)
    shown += "".join(map(matcher.push, pieces))
    text = early + "".join(pieces)
    ends = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(early) + 1, len(text) + 1)
        if text[:end].endswith(stop)
    ]
    if ends:
        assert shown == text[: min(ends)[1]]
    else:
        assert matcher.matched is None
        assert shown + matcher.flush() == text


@settings(max_examples=200)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_held_back_text_is_the_beginning_of_a_stop_string(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopStrings(stops)
    shown = "".join(map(matcher.push, pieces))
    if matcher.matched is None:
        held = "".join(pieces)[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
