"""Text comes out of tokens whole, once, and never beyond a stop string."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from fastgen_runtime.engine.request import FinishReason
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Answer, Delta
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.sources.fetch import SMOLLM2, fetch
from fastgen_runtime.text.detokenizer import Vocabulary


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


@settings(max_examples=300)
@given(st.lists(st.integers(0, 49_151), max_size=60))
def test_the_pieces_are_the_whole_text(token_ids: list[int]) -> None:
    vocabulary = smollm2()
    whole = vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "".join(stream(vocabulary, token_ids)) == whole


@settings(max_examples=300)
@given(st.text(max_size=40))
def test_no_piece_of_any_text_holds_a_broken_character(text: str) -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream(vocabulary, token_ids)
    expected = vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "".join(pieces) == expected
    assert "".join(pieces).count("\ufffd") == expected.count("\ufffd")


@settings(max_examples=300)
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


def pushed(made: Answer, token_ids: list[int], cuts: set[int], finish: FinishReason) -> list[Delta]:
    """The deltas that are taken after the tokens of these numbers, and at the end."""
    deltas = []
    for number, token_id in enumerate(token_ids):
        is_last = number == len(token_ids) - 1
        logprobs = TokenLogprobs(token_id, -0.5 * number, 1)
        made.push(token_id, finish if is_last else None, logprobs)
        if number in cuts or is_last or made.finish is not None:
            deltas.append(made.take())
        if made.finish is not None:
            break
    return deltas


@settings(max_examples=200)
@given(
    st.text(alphabet="ab é🦜", min_size=1, max_size=20),
    st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2),
    st.integers(0, 6),
    st.sets(st.integers(0, 30)),
    st.sampled_from(FinishReason),
)
def test_whenever_a_client_reads_it_gets_the_same(
    text: str, stops: list[str], min_tokens: int, cuts: set[int], finish: FinishReason
) -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids

    def read(cuts: set[int]) -> list[Delta]:
        made = Answer(vocabulary, 5, stops, min_tokens=min_tokens)
        return pushed(made, token_ids, cuts, finish)

    deltas, (whole,) = read(cuts), read(set())
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(one for delta in deltas for one in delta.logprobs) == whole.logprobs
    told = tuple(token for delta in deltas for token in delta.token_ids)
    assert told == whole.token_ids == tuple(token_ids[: len(told)])
    for delta in deltas:
        assert [one.token_id for one in delta.logprobs] == list(delta.token_ids)
    assert (deltas[-1].finish, deltas[-1].usage) == (whole.finish, whole.usage)
    assert deltas[-1].matched_stop == whole.matched_stop
    if whole.matched_stop is not None:
        assert len(told) > min_tokens


def test_tokens_are_told_when_they_come_and_their_text_when_it_is_safe() -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(" one two", add_special_tokens=False).ids
    made = Answer(vocabulary, 1, [" one two three"])
    deltas = pushed(made, token_ids, {0}, FinishReason.LENGTH)
    assert [(delta.text, len(delta.logprobs)) for delta in deltas] == [("", 1), (" one two", 1)]


def test_a_stop_string_waits_for_the_least_number_of_tokens() -> None:
    vocabulary = smollm2()
    token_ids = vocabulary.tokenizer.encode(" a. b. c.", add_special_tokens=False).ids
    assert len(token_ids) == 6
    for min_tokens, text in [(0, " a"), (1, " a"), (2, " a. b"), (5, " a. b. c"), (6, " a. b. c.")]:
        made = Answer(vocabulary, 1, ["."], min_tokens=min_tokens)
        deltas = pushed(made, token_ids, set(), FinishReason.LENGTH)
        assert "".join(delta.text for delta in deltas) == text
        matched = None if min_tokens == 6 else "."
        assert made.matched_stop == matched


def test_what_ended_an_answer_is_told() -> None:
    vocabulary = smollm2()

    def ended_by(token_id: int, finish: FinishReason) -> Delta:
        made = Answer(vocabulary, 1, stop_token_ids=(7, 9))
        made.push(100, None)
        made.push(token_id, finish)
        return made.take()

    assert ended_by(7, FinishReason.STOP).matched_stop == 7
    assert ended_by(2, FinishReason.STOP).matched_stop is None
    assert ended_by(7, FinishReason.LENGTH).matched_stop is None
    assert ended_by(7, FinishReason.STOP).text == vocabulary.tokenizer.decode([100])
    assert ended_by(7, FinishReason.STOP).token_ids == (100, 7)


def test_an_answer_of_no_tokens_holds_none() -> None:
    made = Answer(smollm2(), 5, is_empty=True)
    made.push(2, FinishReason.STOP, TokenLogprobs(2, -1.0, 1))
    delta = made.take()
    assert (delta.text, delta.token_ids, delta.logprobs) == ("", (), ())
    assert delta.finish is FinishReason.LENGTH
    assert delta.usage is not None
    assert delta.usage.output_tokens == 0


@pytest.mark.parametrize("vocabulary", [smollm2, sentencepiece_like])
def test_special_tokens_have_a_text_where_they_are_wanted(vocabulary: Any) -> None:
    known: Vocabulary = vocabulary()
    shown_id = max(known.special_ids)
    text = known.tokenizer.id_to_token(shown_id)
    letter = known.tokenizer.token_to_id("a")
    shown = known.detokenizer((shown_id,))
    pieces = [*map(shown.push, [letter, shown_id, letter, min(known.special_ids)]), shown.flush()]
    assert "".join(pieces) == f"a{text}a"
    hidden = known.detokenizer()
    assert "".join([*map(hidden.push, [letter, shown_id, letter]), hidden.flush()]) == "aa"
