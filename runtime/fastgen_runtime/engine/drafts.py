"""Which guessed tokens a step computes beside those that answers owe."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from fastgen_api.spec import Speculation
from fastgen_runtime.engine.blocks import blocks_for
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.chunk import needs_tokens
from fastgen_runtime.engine.latency import StepCost, shape_of_chunks
from fastgen_runtime.engine.lookup import MOST_GUESSED, Lookup, num_right
from fastgen_runtime.engine.plan import Limits, Plan
from fastgen_runtime.engine.request import Request
from fastgen_runtime.engine.step import Chunk, ChunkResult

_MARGIN: Final = 1.1
"""How much better than without it a guess must be: acceptance and cost are estimates."""
_LEAST_SECONDS: Final = 1e-9
_LEAST_ROWS: Final = 1 + MOST_GUESSED
"""Of logits that any step may have: megabytes, which no plan of memory depends on."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A guess that could be computed. start: position of its first token. most: how many tokens it
    may have. acceptance: how likely each is right if those before it are."""

    start: int
    most: int
    acceptance: float


_BEST: Final = Offer(start=0, most=1, acceptance=1.0)
"""Where not even this is worth it nobody's text is looked through: some 10 µs for 2,000 tokens."""


@dataclass(frozen=True, slots=True)
class Room:
    """A step without guesses, and what may be added to it.

    num_answers: tokens that it brings. seconds: that it takes. tokens: most guessed ones.
    most_seconds: that it may take.
    """

    num_answers: int
    seconds: float
    tokens: int
    most_seconds: float = inf


def choose_lengths(offers: Sequence[Offer], room: Room, cost: StepCost) -> list[int]:
    """How many tokens of each guess to compute, so that a second brings the most tokens.

    A token that is right with probability p adds p tokens and its own time. Taken in the order of
    p per second, each is worth it as long as it brings more per second than the step does with
    those before it: the optimum of a sum divided by a sum. A guessed token costs what one more
    answer's would: a token and a row of logits.
    """
    items = []
    for number, offer in enumerate(offers):
        gain = 1.0
        for index in range(offer.most):
            gain *= offer.acceptance
            seconds = max(cost.chunk_seconds(offer.start + index, 1), _LEAST_SECONDS)
            items.append((gain / seconds, number, gain, seconds))
    # Stable: of one guess the tokens before come first, also where they are worth the same.
    items.sort(key=lambda item: -item[0])
    lengths = [0] * len(offers)
    expected, seconds = float(room.num_answers), room.seconds
    for worth, number, gain, more in items[: max(0, room.tokens)]:
        if seconds + more > room.most_seconds or worth * seconds <= _MARGIN * expected:
            break
        lengths[number] += 1
        expected += gain
        seconds += more
    return lengths


def plan_drafts(
    plan: Plan, limits: Limits, budget: Budget, cost: StepCost | None, block_size: int
) -> dict[Request, tuple[int, ...]]:
    """The guessed tokens of each request of a step; `cost`: None while nothing is known of steps.

    None where the step holds prompts, to which the budget belongs. They stay within the budget, in
    the last block of their request, and with the answers within `max_running` rows of logits, for
    which memory is planned, or _LEAST_ROWS.
    """
    if limits.speculation is Speculation.NONE or cost is None:
        return {}
    answers = [request for request, _ in plan.pieces]
    if not all(map(_is_answer, answers)):
        return {}
    room = Room(
        num_answers=len(answers),
        seconds=cost.seconds(shape_of_chunks((one.num_computed, 1) for one in answers)),
        tokens=min(plan.budget_tokens, max(limits.max_running, _LEAST_ROWS)) - len(answers),
        most_seconds=inf if budget.seconds is None else budget.seconds,
    )
    if choose_lengths([_BEST], room, cost) == [0]:
        return {}
    guesses = {one: found for one in answers if (found := _guess(one, block_size)) is not None}
    lengths = choose_lengths([offer for offer, _ in guesses.values()], room, cost)
    return {
        request: guess[:length]
        for (request, (_, guess)), length in zip(guesses.items(), lengths, strict=True)
        if length
    }


def taken(request: Request, chunk: Chunk, result: ChunkResult) -> Sequence[int]:
    """The tokens that a step brought a request: one, and one more for each guess that was right."""
    if result.token_id is None:
        return ()
    drawn = (result.token_id, *result.further_token_ids)
    drafted = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafted :]
    tokens = drawn[: num_right(drafted, drawn) + 1]
    if request.lookup is not None:
        request.lookup.note(tokens)
    return tokens


def lookup_for(request: Request, speculation: Speculation) -> Lookup | None:
    """None where the choice of a token depends on more than its place, or is told about."""
    sampling = request.new.sampling
    if (
        speculation is Speculation.NONE
        or request.constraint is not None
        or sampling.num_logprobs is not None
        or needs_tokens(sampling)
    ):
        return None
    return Lookup()


def _is_answer(request: Request) -> bool:
    return request.first_token_at is not None and request.num_owed == 1


def _guess(request: Request, block_size: int) -> tuple[Offer, tuple[int, ...]] | None:
    """What the request's text suggests, cut to what its last block and its answer have room for."""
    # Tokens that may not come yet are no guesses' business.
    if request.lookup is None or request.num_output_tokens < request.new.min_tokens:
        return None
    guess = request.lookup.guess(request.token_ids)
    end = request.num_computed + 1
    left = request.new.max_tokens - request.num_output_tokens - 1
    most = min(len(guess), left, blocks_for(end, block_size) * block_size - end)
    return (Offer(end, most, request.lookup.acceptance), guess) if most else None
