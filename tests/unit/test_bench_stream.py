"""Event streams and prompts: tokens are timed and counted as they are."""

import json
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_cli.bench.fitting import parse_ids
from fastgen_cli.bench.http_endpoint import answer_of
from fastgen_cli.bench.prompts import WORDS, TextPrompts, calibrate, text_of
from fastgen_cli.bench.record import NoAnswerError
from fastgen_cli.bench.stream import EventStream
from fastgen_cli.errors import UserError


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


USAGE = {"prompt_tokens": 12, "completion_tokens": 3}
CHAT = [
    event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
    b": keep-alive\n\n",
    event({"choices": [{"delta": {"reasoning_content": "Hm"}}]}),
    event({"choices": [{"delta": {"content": "lo"}, "finish_reason": None}]}),
    event({"choices": [{"delta": {"content": "."}}]}),
    event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
]


def read(pieces: list[bytes]) -> EventStream:
    stream = EventStream()
    for at, piece in enumerate(pieces):
        stream.feed(piece, float(at))
    return stream


def test_each_text_is_timed_and_nothing_else() -> None:
    answer = answer_of(read(CHAT), 9.0)
    assert answer.token_seconds == (2.0, 3.0, 4.0)
    assert (answer.prompt_tokens, answer.output_tokens) == (12, 3)
    assert answer.text == "Hmlo."


def test_a_completion_has_its_text_beside() -> None:
    stream = read([event({"choices": [{"text": " a"}]}), event({"choices": [{"text": ""}]})])
    assert stream.times == [0.0]


@given(st.lists(st.integers(0, len(b"".join(CHAT))), max_size=12))
def test_how_the_network_cuts_a_stream_does_not_matter(cuts: list[int]) -> None:
    whole = b"".join(CHAT)
    stream = read([whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])])
    assert len(stream.times) == 3
    assert (stream.usage, stream.done) == ((12, 3), True)


@pytest.mark.parametrize("received", range(len(CHAT)))
def test_a_stream_that_breaks_off_is_no_answer(received: int) -> None:
    with pytest.raises(NoAnswerError, match="broke off"):
        answer_of(read(CHAT[:received]), 9.0)


def test_an_error_in_the_stream_and_what_is_no_event_are_failures() -> None:
    with pytest.raises(NoAnswerError, match="engine died"):
        read([event({"error": {"message": "engine died"}})])
    with pytest.raises(NoAnswerError, match="unreadable"):
        read([b"data: <html>\n"])


class Vocabulary:
    """Counts a prompt's tokens: words cost what it says, the template 7."""

    def __init__(self, costs: dict[str, int]) -> None:
        self.costs = costs
        self.asked = 0

    def tokens(self, text: str) -> int:
        return 7 + sum(self.costs.get(word, 1) for word in text.split(" "))

    async def count(self, text: str) -> int:
        self.asked += 1
        return self.tokens(text)


@given(st.integers(20, 3000), st.integers(0, 2**32))
async def test_prompts_have_the_asked_number_of_tokens(tokens: int, seed: int) -> None:
    vocabulary = Vocabulary({})
    prompts = await calibrate(vocabulary.count)
    assert vocabulary.asked == 2
    assert vocabulary.tokens(prompts.make(tokens, Random(seed))) == tokens


async def test_words_that_are_no_single_token_are_left_out() -> None:
    vocabulary = Vocabulary({"river": 2, "stone": 3})
    prompts = await calibrate(vocabulary.count)
    assert prompts.is_exact
    assert set(prompts.words) == set(WORDS) - {"river", "stone"}
    assert vocabulary.tokens(prompts.make(300, Random(1))) == 300


async def test_without_single_tokens_lengths_are_right_on_average() -> None:
    vocabulary = Vocabulary({word: 2 + len(word) % 2 for word in WORDS})
    prompts = await calibrate(vocabulary.count)
    assert not prompts.is_exact
    counts = [vocabulary.tokens(prompts.make(1000, Random(seed))) for seed in range(40)]
    assert sum(counts) / len(counts) == pytest.approx(1000, rel=0.02)


def test_prompts_shorter_than_the_template_have_one_word() -> None:
    assert TextPrompts(40).make(3, Random(0)).startswith(text_of([]))


def test_ids_come_from_their_range() -> None:
    ids = parse_ids("10-12").make(200, Random(0))
    assert len(ids) == 200
    assert set(ids) == {10, 11, 12}
    for text in ("12-10", "ten", "5"):
        with pytest.raises(UserError, match="--token-ids"):
            parse_ids(text)
