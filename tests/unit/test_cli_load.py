"""The load generator's decisions: when to send, and what it saw."""

import json
import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_cli.load import (
    Arrival,
    Plan,
    Stream,
    make_arrivals,
    make_prompt,
    make_request,
    make_sample,
)


def event(text: str | None = None, **fields: object) -> bytes:
    delta = {} if text is None else {"content": text}
    body = {"choices": [{"index": 0, "delta": delta}], **fields}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


USAGE = {"prompt_tokens": 12, "completion_tokens": 3}
ANSWER = [
    event(""),
    event("Hel"),
    event("lo"),
    event("."),
    b'data: {"choices": [], "usage": ' + json.dumps(USAGE).encode() + b"}\n\n",
    b"data: [DONE]\n\n",
]


def test_the_same_seed_gives_the_same_requests() -> None:
    plan = Plan(requests_per_second=5, duration_seconds=20, seed=3)
    assert list(make_arrivals(plan)) == list(make_arrivals(plan))


def test_arrivals_come_at_the_rate_and_within_the_duration() -> None:
    arrivals = list(make_arrivals(Plan(requests_per_second=20, duration_seconds=100)))
    offsets = [one.at_seconds for one in arrivals]
    assert offsets == sorted(offsets)
    assert offsets[0] > 0
    assert offsets[-1] < 100
    assert 1800 < len(arrivals) < 2200


def test_a_rate_may_change_while_the_load_runs() -> None:
    plan = Plan(requests_per_second=1, duration_seconds=100)
    arrivals = list(make_arrivals(plan, lambda at: 20.0 if at < 50 else 2.0))
    early = sum(one.at_seconds < 50 for one in arrivals)
    assert 850 < early < 1150
    assert 60 < len(arrivals) - early < 150


def test_a_rate_of_zero_ends_the_arrivals() -> None:
    plan = Plan(requests_per_second=1, duration_seconds=100)
    assert list(islice(make_arrivals(plan, lambda _: 0.0), 5)) == []


def test_prompts_hold_the_asked_number_of_words() -> None:
    prompt = make_prompt(17, random.Random(1))
    assert len(prompt.partition(": ")[2].split()) == 17


def test_a_text_is_a_chat_and_token_ids_are_a_completion_of_the_asked_length() -> None:
    path, body = make_request(Arrival(0.0, "Hello", 7), "m")
    assert path == "/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert "ignore_eos" not in body
    path, body = make_request(Arrival(0.0, (5, 6), 7), "m")
    assert path == "/completions"
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([5, 6], 7, True)
    assert (body["model"], body["stream"]) == ("m", True)


def test_a_stream_is_timed_from_its_first_text() -> None:
    stream = Stream()
    for at, data in enumerate(ANSWER):
        stream.feed(data, float(at))
    sample = make_sample(stream, sent=0.5, ended=6.0, status=200, replica="r-1")
    assert sample.ttft_seconds == 0.5
    assert sample.tpot_seconds == 1.0
    assert sample.gap_seconds == 1.0
    assert (sample.prompt_tokens, sample.output_tokens) == (12, 3)
    assert (sample.replica, sample.error) == ("r-1", "")


@given(st.lists(st.integers(0, len(b"".join(ANSWER))), max_size=12))
def test_how_the_network_cuts_a_stream_does_not_matter(cuts: list[int]) -> None:
    whole = b"".join(ANSWER)
    edges = [0, *sorted(cuts), len(whole)]
    stream = Stream()
    for start, end in pairwise(edges):
        stream.feed(whole[start:end], 1.0)
    assert stream.done
    assert stream.events == 3
    assert stream.usage() == (12, 3)


@pytest.mark.parametrize("received", range(1, len(ANSWER)))
def test_a_stream_that_breaks_off_is_an_error(received: int) -> None:
    stream = Stream()
    for data in ANSWER[:received]:
        stream.feed(data, 1.0)
    assert make_sample(stream, 0.0, 2.0, 200, "").error


def test_a_single_token_has_no_pace() -> None:
    stream = Stream()
    stream.feed(event("Hi") + b"data: [DONE]\n\n", 1.0)
    sample = make_sample(stream, 0.0, 1.0, 200, "")
    assert (sample.tpot_seconds, sample.gap_seconds) == (None, None)
    assert sample.output_tokens == 1
