"""Guesses of what comes next: where they are found, how good they were, when they are computed."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toy_model import EOS, ToyCache, alone, repeating_token, request

from fastgen_api.spec import Speculation
from fastgen_runtime.engine.blocks import BlockPool
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.drafts import Offer, Room, choose_lengths
from fastgen_runtime.engine.latency import StepCost, StepShape, shape_of
from fastgen_runtime.engine.lookup import MOST_GUESSED, Lookup, num_right
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.scheduler import Committed, Scheduler
from fastgen_runtime.engine.step import ChunkResult, Sampling, Step

COST = StepCost(base=0.02, per_token=0.001, per_attended=0.0, per_request=0.001)
LIMITS = Limits(64, 16, 16, 400, speculation=Speculation.PROMPT_LOOKUP)


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ([], ()),
        ([5], ()),
        ([1, 2, 3, 4], ()),
        # One token alone says too little.
        ([1, 9, 2, 1], ()),
        ([1, 2, 7, 8, 9, 1, 2], (7, 8, 9, 1, 2, 7, 8, 9)),
        # Three tokens tell more than the two that were there last.
        ([3, 1, 2, 7, 6, 4, 1, 2, 8, 5, 3, 1, 2], (7, 6, 4, 1, 2, 8, 5, 3)),
        ([1, 2, 7, 0, 1, 2, 8, 0, 0, 1, 2], (8, 0, 0, 1, 2, 8, 0, 0)),
        ([4, 4, 4], (4,) * 8),
        # Bytes of neighbours that look like a token: 0x0100 after 0 is 1 and 0x010000 elsewhere.
        ([0x100, 0x100, 7, 0x10000, 0x10000, 3, 1, 1], ()),
        # Numbers that are no characters of their own: surrogates, and those behind the last.
        ([0xD800, 0xDC00, 7, 0x10000, 0xD800, 0xDC00], (7, 0x10000, 0xD800, 0xDC00) * 2),
        ([1 << 21, 5, 7, 1 << 21, 5], (7, 1 << 21, 5) * 2 + (7, 1 << 21)),
    ],
)
def test_guesses_are_what_followed_the_last_time(text: list[int], guess: tuple[int, ...]) -> None:
    assert Lookup().guess(text) == guess


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 9), max_size=9))
def test_a_text_that_grows_is_guessed_from_as_one_that_is_there(
    text: list[int], pieces: list[int]
) -> None:
    lookup = Lookup()
    for end in [sum(pieces[:n]) for n in range(len(pieces) + 1)] + [len(text)]:
        if end <= len(text):
            guess = lookup.guess(text[:end])
            assert guess == Lookup().guess(text[:end])
            assert len(guess) in (0, MOST_GUESSED)
            if guess:  # what is guessed has been there, after the same two tokens
                triples = list(zip(text, text[1:], text[2:end], strict=False))
                assert (*text[end - 2 : end], guess[0]) in triples
    assert lookup.guess(text) == Lookup().guess(text)


def test_acceptance_follows_what_came() -> None:
    lookup, text = Lookup(), [1, 2] * 5
    assert lookup.acceptance == 0.5

    def go_on(come: list[int]) -> None:
        lookup.guess(text)
        lookup.note(come)
        text.extend(come)

    go_on([1])
    go_on([2, 1, 2])
    assert 0.8 < lookup.acceptance < 1
    for number in range(20):
        go_on([100 + number])  # after 1, 2
        text += [1, 2]
    assert lookup.acceptance < 0.2
    before = lookup.acceptance
    text.append(200)
    go_on([3])
    assert lookup.acceptance == before, "nothing was guessed"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_guesses_are_right_up_to_the_first_that_is_not(
    guessed: list[int], drawn: list[int]
) -> None:
    number = num_right(guessed, drawn)
    assert guessed[:number] == drawn[:number]
    assert number in (len(guessed), len(drawn)) or guessed[number] != drawn[number]


def rate(offers: list[Offer], lengths: list[int], room: Room, cost: StepCost) -> float:
    """Tokens per second that a step with so many guessed tokens is expected to bring."""
    tokens, seconds = float(room.num_answers), room.seconds
    for offer, length in zip(offers, lengths, strict=True):
        tokens += sum(offer.acceptance ** (i + 1) for i in range(length))
        seconds += sum(cost.chunk_seconds(offer.start + i, 1) for i in range(length))
    return tokens / seconds


OFFERS = st.lists(
    st.builds(Offer, st.integers(0, 5000), st.integers(0, 8), st.floats(0, 1)), max_size=6
)


@settings(max_examples=300)
@given(OFFERS, st.integers(0, 20), st.floats(0.001, 0.5), st.sampled_from([inf, 0.03, 0.1]))
@example([Offer(0, 8, 1.0), Offer(0, 8, 1.0)], 5, 0.02, inf)
def test_a_step_with_guesses_brings_more_per_second_and_stays_in_its_room(
    offers: list[Offer], tokens: int, seconds: float, most_seconds: float
) -> None:
    cost = replace(COST, per_attended=1e-6)
    room = Room(max(1, len(offers)), seconds, tokens, most_seconds)
    lengths = choose_lengths(offers, room, cost)
    assert sum(lengths) <= tokens
    assert all(n <= offer.most for n, offer in zip(lengths, offers, strict=True))
    extra = sum(
        cost.chunk_seconds(offer.start + i, 1)
        for offer, length in zip(offers, lengths, strict=True)
        for i in range(length)
    )
    assert seconds + extra <= max(seconds, most_seconds * (1 + 1e-9))
    now = rate(offers, lengths, room, cost)
    if any(lengths):
        assert now > rate(offers, [0] * len(offers), room, cost)
    if most_seconds < inf or sum(lengths) == tokens:
        return
    for number, offer in enumerate(offers):  # nothing that is left out would be much better
        if lengths[number] < offer.most:
            more = [length + (i == number) for i, length in enumerate(lengths)]
            assert rate(offers, more, room, cost) <= 1.1 * now


@pytest.mark.parametrize(
    ("acceptance", "cost", "length"),
    [
        (0.05, COST, 0),
        (0.95, COST, 8),
        (0.5, COST, 2),
        # Where each token costs its own time, as beside many answers, nothing is gained.
        (0.95, StepCost(0.0001, 0.01, 0.0, 0.01), 0),
        (0.5, StepCost(0.02, 0.0, 0.0, 0.0), 8),
    ],
)
def test_how_many_are_computed_follows_acceptance_and_cost(
    acceptance: float, cost: StepCost, length: int
) -> None:
    room = Room(1, cost.seconds(StepShape(1, 10, 1)), 100)
    assert choose_lengths([Offer(10, 8, acceptance)], room, cost) == [length]


class Run:
    """A scheduler and the toy model whose texts repeat themselves."""

    def __init__(self, limits: Limits = LIMITS, num_blocks: int = 200, block_size: int = 8) -> None:
        self.scheduler = Scheduler(BlockPool(num_blocks, block_size), limits, [EOS])
        self.cache = ToyCache(block_size, repeating_token)
        self.tokens: dict[str, list[int]] = {}

    def step(
        self, budget: Budget | None = None, cost: StepCost | None = COST
    ) -> tuple[Step, Committed]:
        step = self.scheduler.schedule(0.0, budget, cost).step
        self.scheduler.check()
        committed = self.scheduler.commit(step, self.cache.run(step), 0.0)
        self.scheduler.check()
        for token in committed.tokens:
            self.tokens.setdefault(token.request_id, []).append(token.token_id)
        return step, committed

    def drive(self) -> tuple[int, int]:
        """Guessed tokens that were computed, and those that came."""
        drafted = accepted = 0
        while self.scheduler.running or self.scheduler.waiting:
            _, committed = self.step()
            drafted += committed.num_drafted
            accepted += committed.num_accepted
        return drafted, accepted


def test_guesses_bring_the_same_tokens_in_fewer_steps() -> None:
    news = [request(name, 12, 60) for name in "abc"]
    run, steps = Run(), 0
    for new in news:
        run.scheduler.add(new)
    while run.scheduler.running or run.scheduler.waiting:
        run.step()
        steps += 1
    assert steps < 45
    assert run.tokens == {new.request_id: alone(new, repeating_token) for new in news}


UNFIT = {
    "off": (request("a", 12, 60), replace(LIMITS, speculation=Speculation.NONE)),
    "log probabilities": (
        replace(request("a", 12, 60), sampling=Sampling(0.0, num_logprobs=0)),
        LIMITS,
    ),
    "penalties": (
        replace(request("a", 12, 60), sampling=Sampling(0.0, presence_penalty=0.5)),
        LIMITS,
    ),
    "no token left": (request("a", 12, 60), replace(LIMITS, budget_tokens=1, max_running=1)),
    "fewest tokens not reached": (replace(request("a", 12, 60), min_tokens=60), LIMITS),
}


@pytest.mark.parametrize("name", UNFIT)
def test_who_gets_no_guesses(name: str) -> None:
    new, limits = UNFIT[name]
    run = Run(limits)
    run.scheduler.add(new)
    assert run.drive() == (0, 0)
    assert run.tokens["a"] == alone(new, repeating_token)


def streaming(*more: NewRequest) -> Run:
    """An answer whose guesses have been right, and requests that have just come."""
    run = Run()
    run.scheduler.add(replace(request("a", 12, 200)))
    while len(run.tokens.get("a", ())) < 60:
        run.step()
    for new in more:
        run.scheduler.add(new)
    return run


def num_drafted(run: Run, budget: Budget | None, cost: StepCost | None) -> int:
    """Of the next twenty steps."""
    return sum(run.step(budget, cost)[1].num_drafted for _ in range(20))


def test_guesses_stay_within_a_steps_seconds_and_beside_no_prompts() -> None:
    assert num_drafted(streaming(), None, COST) > 20
    assert num_drafted(streaming(), None, None) == 0, "nothing is known of steps"
    one, two = COST.seconds(StepShape(1, 0, 1)), COST.seconds(StepShape(2, 0, 2))
    assert num_drafted(streaming(), Budget(64, one, COST), COST) == 0
    run = streaming()
    steps = [run.step(Budget(64, two + 1e-9, COST), COST)[0] for _ in range(20)]
    assert max(step.num_tokens for step in steps) == 2
    run = streaming(request("prompt", 150, 1))
    slow = Budget(64, 0.0, COST, 8)
    while "prompt" not in run.tokens:
        step, _ = run.step(slow)
        assert not any(chunk.num_drafted for chunk in step.chunks)


def test_a_guess_that_is_no_finite_number_harms_only_who_reaches_it() -> None:
    run = streaming()
    while not (step := run.scheduler.schedule(0.0, None, COST).step).chunks[0].num_drafted:
        run.scheduler.commit(step, run.cache.run(step), 0.0)
    (chunk,) = step.chunks
    first = chunk.token_ids[1]
    committed = run.scheduler.commit(step, [ChunkResult(first)], 0.0)
    assert [token.token_id for token in committed.tokens] == [first]
    assert run.scheduler.running[0].num_owed == 1


def test_the_latency_model_sees_a_guess_as_one_more_answer() -> None:
    run = streaming()
    while not (step := run.step()[0]).chunks[0].num_drafted:
        pass
    (chunk,) = step.chunks
    count = len(chunk.token_ids)
    attended = sum(chunk.start + 1 + index for index in range(count))
    assert shape_of(step) == StepShape(count, attended, count)
