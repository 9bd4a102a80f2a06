"""A list of prompts is one request: taken once, served to the end, counted and logged once."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from message_engine import ASKED, Engine, settle, token

from fastgen_api.names import Metric, Outcome
from fastgen_api.spec import SLO, TimeToFirstToken
from fastgen_runtime.engine.request import Started
from fastgen_runtime.front.generation import ErrorKind, Generation, RequestError, TokenPrompt
from fastgen_runtime.front.goodness import End
from fastgen_runtime.front.places import Places
from fastgen_runtime.protocols.prompt_batch import BatchDelta, open_batch

PROMPTS = tuple(replace(ASKED, prompt=TokenPrompt([504, index])) for index in range(1, 4))


async def told(engine: Engine, generations: tuple[Generation, ...] = PROMPTS) -> list[BatchDelta]:
    async with open_batch(engine.front, generations) as deltas:
        return [delta async for delta in deltas]


async def test_prompts_behind_the_first_one_are_served_while_the_replica_drains() -> None:
    engine = Engine()
    answering = asyncio.create_task(told(engine))
    await settle()
    engine.front.draining = True
    idle = asyncio.create_task(engine.front.wait_until_idle(10))
    for name in "123":
        await settle()
        assert engine.requests[-1].request_id == name
        assert not idle.done()
        engine.step(token(name, 5, is_last=True))
    assert [(one.prompt, one.delta.token_ids) for one in await answering] == [
        (0, (5,)), (1, (5,)), (2, (5,)),
    ]  # fmt: skip
    assert await idle
    with pytest.raises(RequestError, match="draining"):
        await told(engine)


async def test_prompts_behind_the_first_one_wait_for_a_place() -> None:
    engine = Engine()
    answering = asyncio.create_task(told(engine))
    await settle()
    async with engine.open(num_choices=3):
        other = asyncio.create_task(engine.answer())
        engine.step(token("1", 5, is_last=True))
        await settle()
        assert engine.requests[-1].prompt_token_ids == [504, 3575]
        with pytest.raises(RequestError, match="4 requests are open of the 4"):
            await engine.answer()
        engine.step(token(engine.requests[-1].request_id, 5, is_last=True))
        await other
        await settle()
        assert engine.requests[-1].prompt_token_ids == [504, 2]
        engine.step(token(engine.requests[-1].request_id, 5, is_last=True))
    await settle()
    engine.step(token(engine.requests[-1].request_id, 5, is_last=True))
    assert len(await answering) == 3


async def test_a_list_is_refused_where_there_is_no_place_for_its_first_prompt() -> None:
    engine = Engine()
    async with engine.open(num_choices=4):
        with pytest.raises(RequestError) as full:
            await told(engine)
    assert full.value.kind is ErrorKind.FULL
    assert [seen.end for seen in engine.finished] == [End.REFUSED, End.CANCELLED]


async def test_a_list_is_counted_once_and_has_waited_from_the_beginning() -> None:
    engine = Engine(SLO(time_to_first_token=TimeToFirstToken(milliseconds=60_000)))
    answering = asyncio.create_task(told(engine))
    for name, queued in (("1", 0.25), ("2", 1.5), ("3", 2.5)):
        await settle()
        engine.step(token(name, 5, started=Started(queued, 1)))
        engine.step(token(name, 6, is_last=True))
    await answering
    assert len({new.arrived for new in engine.requests}) == 1
    (seen,) = engine.finished
    assert (seen.end, seen.outcome, seen.request_id) == (End.COMPLETED, Outcome.GOOD, "mine")
    assert (seen.num_choices, seen.finish_reasons) == (3, ("length",) * 3)
    assert (seen.prompt_tokens, seen.output_tokens, seen.cached_tokens) == (6, 6, 3)
    assert seen.queue_seconds == 0.25
    counted = [
        line
        for line in engine.front.metrics.render().decode().splitlines()
        if line.startswith(f"{Metric.REQUESTS}{{") and not line.endswith(" 0.0")
    ]
    assert len(counted) == 1
    assert counted[0].endswith(" 1.0")


async def test_a_wrong_prompt_refuses_the_list_before_anything_is_begun() -> None:
    engine = Engine()
    wrong = replace(ASKED, prompt=TokenPrompt([5] * 100))
    with pytest.raises(RequestError, match=r"^prompt\[2\] has 100 tokens") as refused:
        await told(engine, (*PROMPTS[:2], wrong))
    assert refused.value.field == "prompt[2]"
    assert engine.commands == []
    assert [seen.end for seen in engine.finished] == [End.INVALID]


async def test_a_client_that_leaves_frees_what_has_begun_and_nothing_else_begins() -> None:
    engine = Engine()
    answering = asyncio.create_task(told(engine))
    await settle()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (len(engine.requests), engine.aborted) == (1, ["1"])
    assert [seen.end for seen in engine.finished] == [End.CANCELLED]
    async with engine.open(num_choices=4):
        pass


async def test_an_engine_that_is_gone_ends_a_list_that_waits_for_a_place() -> None:
    engine = Engine()
    answering = asyncio.create_task(told(engine))
    await settle()
    async with engine.open(num_choices=3):
        engine.step(token("1", 5, is_last=True))
        await settle()
        engine.front.fail("the engine is gone")
    with pytest.raises(RequestError, match="the engine is gone"):
        await answering


async def test_a_made_answer_gives_its_place_back_though_nobody_reads_it() -> None:
    engine = Engine()
    async with AsyncExitStack() as unread:
        for _ in range(8):
            num_known = len(engine.requests)
            await unread.enter_async_context(engine.open(num_choices=4))
            names = [new.request_id for new in engine.requests[num_known:]]
            engine.step(*(token(name, 5, is_last=True) for name in names))
        with pytest.raises(RequestError, match=r"32 answers of the 32 .* do not read") as full:
            await engine.answer()
        assert full.value.kind is ErrorKind.FULL
    async with engine.open(num_choices=4):
        pass


async def test_who_waits_for_places_gets_them_in_turn_and_before_those_who_came_later() -> None:
    places = Places(4)
    places.take(3)
    big, small = (asyncio.create_task(places.wait(number)) for number in (4, 1))
    await settle()
    with pytest.raises(RequestError, match="3 requests are open"):
        places.take(1)
    places.leave(3, 0)
    await settle()
    assert (big.done(), small.done()) == (True, False)
    places.leave(4, 0)
    await settle()
    assert small.done()
    places.take(3)


@pytest.mark.parametrize("is_granted", [False, True])
async def test_who_waits_no_more_holds_up_nobody(is_granted: bool) -> None:
    places = Places(2)
    places.take(2)
    leaving, staying = (asyncio.create_task(places.wait(2)) for _ in range(2))
    await settle()
    if is_granted:
        places.leave(2, 0)
    leaving.cancel()
    await settle()
    if not is_granted:
        places.leave(2, 0)
    await settle()
    assert leaving.cancelled()
    assert staying.done()
    assert not staying.cancelled()
    places.leave(2, 0)
    places.take(2)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_prompt_logprobs": 20, "num_choices": 128}, "prompt_logprobs"),
        ({"num_logprobs": 20, "num_choices": 128, "max_tokens": None}, "logprobs"),
    ],
)
async def test_more_log_probabilities_than_a_response_may_hold_are_refused(
    fields: dict[str, int | None], field: str
) -> None:
    engine = Engine(max_waiting=1000)
    prompts = tuple(replace(ASKED, prompt=TokenPrompt([5] * 50), **fields) for _ in range(4))
    with pytest.raises(RequestError, match="it may hold 500000: ask for less") as refused:
        await told(engine, prompts)
    assert refused.value.field == field
    assert engine.commands == []
    alone = asyncio.create_task(told(engine, prompts[:2]))
    await settle()
    assert not alone.done()
    alone.cancel()
