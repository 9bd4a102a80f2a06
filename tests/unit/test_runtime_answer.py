"""Text comes out of tokens whole, once, and never beyond a stop string."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from fastgen_runtime.answer import Answer
from fastgen_runtime.checkpoint import open_checkpoint
from fastgen_runtime.detokenizer import Vocabulary
from fastgen_runtime.fetch import SMOLLM2, fetch
from fastgen_runtime.request import FinishReason
from fastgen_runtime.stop import StopStrings


@cache
def smollm2() -> Vocabulary:
    return Vocabulary(open_checkpoint(fetch(SMOLLM2)).tokenizer)


@cache
def sentencepiece_like() -> Vocabulary:
    """Byte fallback and `▁` for spaces, as in Llama 2's tokenizer."""
    words = ["▁", "▁the", "▁cat", "s", "é", "日", "本", "▁日本", "a", "b"]
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Vocabulary(tokenizer)


def stream(vocabulary: Vocabulary, token_ids: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer()
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 49_151), max_size=60))
def test_the_pieces_are_the_whole_text(token_ids: list[int]) -> None:
    vocabulary = smollm2()
    whole = vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "".join(stream(vocabulary, token_ids)) == whole


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_no_piece_of_any_text_holds_a_broken_character(text: str) -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream(vocabulary, token_ids)
    expected = vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "".join(pieces) == expected
    assert "".join(pieces).count("\ufffd") == expected.count("\ufffd")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="the cats日本é🦜ab", max_size=40))
def test_texts_of_sentencepiece_like_tokenizers_come_whole(text: str) -> None:
    vocabulary = sentencepiece_like()
    token_ids = vocabulary.tokenizer.encode(text.replace(" ", "▁"), add_special_tokens=False).ids
    pieces = stream(vocabulary, token_ids)
    assert "".join(pieces) == vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "\ufffd" not in "".join(pieces)


def test_added_tokens_that_are_not_special_are_text() -> None:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<tool 日>", special=False)])
    tokenizer.add_tokens([AddedToken("<end>", special=True)])
    assert stream(Vocabulary(tokenizer), [0, 2, 3, 1, 99]) == ["a", "<tool 日>", "", "b", "", ""]


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


def answer(text: str, stops: list[str], finish: FinishReason) -> tuple[str, Answer]:
    """The text of an answer whose tokens say `text`, then the end token if it stops."""
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    if finish is FinishReason.STOP:
        token_ids.append(2)
    made = Answer(vocabulary, 5, stops)
    shown = ""
    for i, token_id in enumerate(token_ids):
        made.push(token_id, finish if i == len(token_ids) - 1 else None)
        delta = made.take()
        shown += delta.text
        assert (delta.usage is not None) == (made.finish is not None)
        if made.finish is not None:
            break
    return shown, made


def test_an_answer_ends_before_its_stop_string() -> None:
    shown, made = answer("First line.\nSecond line.", ["\nSec"], FinishReason.LENGTH)
    assert shown == "First line."
    assert made.finish is FinishReason.STOP
    made.push(1, FinishReason.LENGTH)
    assert made.take().text == ""


def test_text_held_for_a_stop_string_comes_with_the_end() -> None:
    shown, made = answer("It ends with STO", ["STOP"], FinishReason.STOP)
    assert shown == "It ends with STO"
    assert made.finish is FinishReason.STOP


def test_a_character_cut_by_the_length_limit_is_shown_as_broken_once() -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode("🦜", add_special_tokens=False).ids
    assert len(token_ids) > 1
    made = Answer(vocabulary, 1)
    made.push(token_ids[0], FinishReason.LENGTH)
    delta = made.take()
    assert delta.text == vocabulary.tokenizer.decode(token_ids[:1])
    assert delta.usage is not None
    assert delta.usage.output_tokens == 1
