"""The front between its clients and an engine of which only the messages are there."""

import asyncio
import time

import pytest
from message_engine import Engine, settle, token

from fastgen_api.names import Outcome
from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.channel import Ready, SetPace
from fastgen_runtime.engine.request import (
    FinishReason,
    Grammar,
    GrammarKind,
    RefusalKind,
    Started,
)
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Usage
from fastgen_runtime.front.generation import ErrorKind, RequestError, TextPrompt
from fastgen_runtime.front.goodness import End

PACE = SLO(
    time_to_first_token=TimeToFirstToken(milliseconds=500, per_prompt_token_microseconds=2000),
    time_per_output_token=TimePerOutputToken(milliseconds=50),
    token_gap=TokenGap(max_milliseconds=250),
)


async def test_the_engine_learns_the_pace_that_the_slo_asks_for() -> None:
    engine = Engine(PACE, is_ready=False)
    engine.front.set_slo(PACE)
    assert engine.commands == []
    engine.front.handle(Ready(10, 16, 100))
    engine.front.set_slo(SLO())
    assert engine.commands == [SetPace(Pace(0.05, 0.25, 0.5, 0.002)), SetPace(Pace())]


async def test_a_single_choice_is_one_request_of_no_group() -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer())
    await settle()
    (new,) = engine.requests
    assert (new.request_id, new.group, new.max_tokens) == ("1", "", 9)
    assert 0 <= time.monotonic() - new.arrived < 10
    engine.step(token("1", 504, started=Started(0.0, 1)), token("2", 504))
    engine.step(token("1", 3575, is_last=True))
    deltas = await answering
    assert sum((delta.token_ids for delta in deltas), ()) == (504, 3575)
    assert deltas[-1].usage == Usage(2, 2, 1)
    assert engine.aborted == []


async def test_a_request_ends_when_all_its_choices_have() -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(num_choices=3, seed=5))
    await settle()
    assert [new.request_id for new in engine.requests] == ["1.0", "1.1", "1.2"]
    assert {new.group for new in engine.requests} == {"1"}
    assert engine.requests[0].sampling.seed == 5
    engine.step(token("1.0", 1), token("1.1", 2, is_last=True), token("1.2", 3))
    await settle()
    assert not answering.done()
    engine.step(token("1.2", 4, is_last=True), token("1.0", 5, is_last=True))
    deltas = await answering
    assert [(delta.index, delta.token_ids) for delta in deltas] == [
        (0, (1,)), (1, (2,)), (2, (3,)), (0, (5,)), (2, (4,)),
    ]  # fmt: skip
    assert [delta.usage for delta in deltas] == [None] * 4 + [Usage(2, 5)]
    assert engine.aborted == []
    (seen,) = engine.finished
    assert (seen.num_choices, seen.output_tokens, seen.finish_reasons) == (3, 5, ("length",) * 3)


async def test_a_stop_string_frees_its_choice_and_no_other() -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(num_choices=2, stop=(" capital",)))
    await settle()
    engine.step(token("1.0", 3575), token("1.1", 504))
    assert engine.aborted == ["1.0"]
    engine.step(token("1.0", 504), token("1.1", 504, is_last=True))
    deltas = await answering
    ended = {delta.index: delta for delta in deltas if delta.finish is not None}
    assert (ended[0].finish, ended[0].matched_stop) == (FinishReason.STOP, " capital")
    assert (ended[1].finish, ended[1].matched_stop) == (FinishReason.LENGTH, None)
    assert sum(len(delta.token_ids) for delta in deltas if delta.index == 0) == 1
    assert engine.aborted == ["1.0"]


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_client_that_leaves_frees_every_choice_at_once(num_choices: int) -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(num_choices=num_choices))
    await settle()
    names = [new.request_id for new in engine.requests]
    engine.step(*(token(name, 5) for name in names))
    await settle()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert engine.aborted == names
    assert engine.finished[0].end is End.CANCELLED


async def test_the_deadline_frees_every_choice() -> None:
    engine = Engine()
    deadline = time.monotonic() + 0.05
    with pytest.raises(RequestError) as passed:
        await engine.answer(num_choices=2, deadline=deadline)
    assert passed.value.kind is ErrorKind.DEADLINE
    assert engine.aborted == ["1.0", "1.1"]
    assert [new.deadline for new in engine.requests] == [deadline] * 2
    (seen,) = engine.finished
    assert (seen.end, seen.outcome) == (End.DEADLINE, Outcome.ERROR)
    assert seen.error == "the request's deadline has passed"


@pytest.mark.parametrize(
    ("kind", "expected", "field"),
    [
        (RefusalKind.FULL, ErrorKind.FULL, None),
        (RefusalKind.TOO_LONG, ErrorKind.INVALID, "prompt"),
        (RefusalKind.EXPIRED, ErrorKind.DEADLINE, None),
        (RefusalKind.INVALID, ErrorKind.INVALID, "grammar"),
        (RefusalKind.FAILED, ErrorKind.FAILED, None),
    ],
)
async def test_what_the_engine_refuses_the_client_is_told(
    kind: RefusalKind, expected: ErrorKind, field: str | None
) -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(num_choices=2))
    await settle()
    engine.refuse("1.1", kind)
    with pytest.raises(RequestError, match="because") as refused:
        await answering
    assert (refused.value.kind, refused.value.field) == (expected, field)
    assert "1.0" in engine.aborted


async def test_each_choice_takes_a_place() -> None:
    engine = Engine()
    async with engine.open(num_choices=3):
        assert engine.front.load().num_waiting == 3
        with pytest.raises(RequestError, match="3 requests are open of the 4") as full:
            await engine.answer(num_choices=2)
        assert full.value.kind is ErrorKind.FULL
        async with engine.open(num_choices=1):
            pass
    async with engine.open(num_choices=4):
        pass
    with pytest.raises(RequestError, match="n is 5, and this replica takes at most 4") as refused:
        await engine.answer(num_choices=5)
    assert (refused.value.kind, refused.value.field) == (ErrorKind.INVALID, "n")
    assert [seen.end for seen in engine.finished].count(End.REFUSED) == 1


async def test_an_echo_is_the_prompt_as_the_client_wrote_it() -> None:
    engine = Engine()
    answering = asyncio.create_task(
        engine.answer(prompt=TextPrompt("The capital"), echo=True, num_prompt_logprobs=0)
    )
    await settle()
    (new,) = engine.requests
    assert new.num_prompt_logprobs == 0
    logprobs = (TokenLogprobs(3575, -1.0, 2),)
    engine.step(token("1", 282, is_last=True, started=Started(0.0, 0, logprobs)))
    (delta,) = await answering
    assert delta.prompt is not None
    assert (delta.prompt.text, delta.text) == ("The capital", " of")
    assert delta.prompt.token_ids == tuple(new.prompt_token_ids)
    assert delta.prompt.logprobs == logprobs


async def test_tokens_are_echoed_as_text_and_no_token_need_follow() -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(echo=True, max_tokens=0))
    await settle()
    assert engine.requests[0].max_tokens == 1
    engine.step(token("1", 282, is_last=True))
    (delta,) = await answering
    assert delta.prompt is not None
    assert (delta.prompt.text, delta.text, delta.token_ids) == ("The capital", "", ())
    assert (delta.finish, delta.usage) == (FinishReason.LENGTH, Usage(2, 0))


async def test_an_observer_sees_every_end_once_and_hurts_nobody() -> None:
    """The one before it breaks each time."""
    engine = Engine()
    answering = asyncio.create_task(engine.answer(waited_seconds=0.5, traceparent="t"))
    await settle()
    engine.step(token("1", 504, started=Started(0.0, 1)))
    engine.step(token("1", 504, is_last=True))
    await answering
    with pytest.raises(RequestError):
        await engine.answer(temperature=3, request_id="theirs")
    engine.front.count_invalid("cannot be read", request_id="broken", protocol="http")
    engine.front.draining = True
    with pytest.raises(RequestError):
        await engine.answer()
    done, wrong, unread, refused = engine.finished
    assert (done.request_id, done.protocol, done.model, done.traceparent) == (
        "mine", "grpc", "m", "t",
    )  # fmt: skip
    assert (done.end, done.outcome, done.error) == (End.COMPLETED, Outcome.GOOD, None)
    assert (done.prompt_tokens, done.cached_tokens, done.output_tokens) == (2, 1, 2)
    assert (done.waited_seconds, done.queue_seconds, done.finish_reasons) == (0.5, 0.0, ("length",))
    assert done.prefill_seconds is not None
    assert done.decode_seconds is not None
    assert done.prefill_seconds + done.decode_seconds <= done.total_seconds
    assert abs(time.time() - done.received) < 60
    assert (wrong.request_id, wrong.end, wrong.outcome) == ("theirs", End.INVALID, Outcome.EXCLUDED)
    assert wrong.error is not None
    assert wrong.error.startswith("temperature")
    assert (wrong.queue_seconds, wrong.prefill_seconds, wrong.decode_seconds) == (None,) * 3
    assert (unread.request_id, unread.error, unread.end) == (
        "broken",
        "cannot be read",
        End.INVALID,
    )
    assert (refused.end, refused.error) == (End.REFUSED, "the replica is draining")


async def test_an_engine_that_is_gone_ends_every_choice() -> None:
    engine = Engine()
    answering = asyncio.create_task(engine.answer(num_choices=2))
    await settle()
    engine.step(token("1.0", 5, is_last=True))
    engine.front.fail("the engine is gone")
    with pytest.raises(RequestError) as broken:
        await answering
    assert broken.value.kind is ErrorKind.UNAVAILABLE
    assert [seen.end for seen in engine.finished] == [End.FAILED]


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_a_grammar_that_cannot_be_used_never_reaches_the_engine(num_choices: int) -> None:
    engine = Engine()
    for grammar in (Grammar(GrammarKind.REGEX, "a("), Grammar(GrammarKind.JSON_SCHEMA, "{")):
        with pytest.raises(RequestError, match=r"grammar is no .* that can be used") as refused:
            await engine.answer(grammar=grammar, num_choices=num_choices)
        assert (refused.value.kind, refused.value.field) == (ErrorKind.INVALID, "grammar")
    assert engine.commands == []
    async with engine.open(grammar=Grammar(GrammarKind.REGEX, "a+"), num_choices=num_choices):
        assert len(engine.requests) == num_choices
        assert engine.requests[-1].grammar == Grammar(GrammarKind.REGEX, "a+")
