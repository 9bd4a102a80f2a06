"""A model of one line for the scheduler's tests: whatever is done wrongly to a request shows."""

from collections.abc import Callable, Sequence

from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.request import NewRequest, NewToken
from fastgen_runtime.engine.scheduler import Scheduler
from fastgen_runtime.engine.step import Chunk, ChunkResult, Sampling, Step, TokenLogprobs

EOS = 0
VOCABULARY = 97
Choose = Callable[..., int]


def next_token(token_ids: Sequence[int], banned: Sequence[int] = ()) -> int:
    """The next token depends on all before it, and on their order."""
    token = (sum((i + 1) * token for i, token in enumerate(token_ids)) * 31 + 7) % VOCABULARY
    while token in banned:
        token = (token + 1) % VOCABULARY
    return token


def repeating_token(token_ids: Sequence[int], banned: Sequence[int] = ()) -> int:
    """Mostly the token that stood nine before, so that texts repeat themselves, and do not always;
    it still depends on all before it."""
    token = next_token(token_ids, banned)
    if token % 4 and len(token_ids) >= 9 and token_ids[-9] not in banned:
        return token_ids[-9]
    return token


class ToyCache:
    """Computes steps as a runner would: reads its context only from the blocks it is given.

    choose: the next token of a text.
    """

    def __init__(self, block_size: int, choose: Choose = next_token) -> None:
        self.block_size = block_size
        self._choose = choose
        self.positions: dict[tuple[int, int], int] = {}

    def run(self, step: Step) -> list[ChunkResult]:
        for chunk in step.chunks:
            for position, token in enumerate(chunk.token_ids, start=chunk.start):
                self.positions[self._slot(chunk, position)] = token
        return [self._result(chunk) for chunk in step.chunks]

    def _result(self, chunk: Chunk) -> ChunkResult:
        end = chunk.start + len(chunk.token_ids)
        context = [self.positions[self._slot(chunk, i)] for i in range(end)]
        logprobs = tuple(
            TokenLogprobs(target, -float(next_token(context[: chunk.start + i + 1])), 1)
            for i, target in enumerate(chunk.targets)
        )
        if chunk.sampling is None:
            return ChunkResult(prompt_logprobs=logprobs)
        ends = range(end - chunk.num_drafted, end + 1)
        token, *further = [self._choose(context[:e], chunk.banned_token_ids) for e in ends]
        return ChunkResult(token, prompt_logprobs=logprobs, further_token_ids=further)

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.block_ids[position // self.block_size], position % self.block_size


def alone(new: NewRequest, choose: Choose = next_token) -> list[int]:
    """The tokens that a request gets when nobody else is there."""
    token_ids = list(new.prompt_token_ids)
    num_prompt = len(token_ids)
    ends = {*(() if new.ignore_eos else (EOS,)), *new.stop_token_ids}
    while len(token_ids) < num_prompt + new.max_tokens:
        is_early = len(token_ids) - num_prompt < new.min_tokens
        token_ids.append(choose(token_ids, sorted(ends) if is_early else ()))
        if token_ids[-1] in ends:
            break
    return token_ids[num_prompt:]


def prompt_logprobs_alone(new: NewRequest) -> list[TokenLogprobs]:
    """What is told of a prompt's tokens from the second on."""
    prompt = list(new.prompt_token_ids)
    return [
        TokenLogprobs(prompt[i], -float(next_token(prompt[:i])), 1) for i in range(1, len(prompt))
    ]


def request(request_id: str, prompt: int, max_tokens: int, ignore_eos: bool = True) -> NewRequest:
    """A prompt of `prompt` tokens that no other request id has."""
    seed = sum(ord(letter) * 31**i for i, letter in enumerate(request_id))
    token_ids = [(seed + i * 7) % VOCABULARY for i in range(prompt)]
    return NewRequest(request_id, token_ids, max_tokens, Sampling(), ignore_eos)


def advance(
    scheduler: Scheduler, cache: ToyCache, now: float = 0.0, budget: Budget | None = None
) -> tuple[Step, tuple[NewToken, ...]]:
    """One step, and the tokens that it brought."""
    step = scheduler.schedule(now, budget).step
    scheduler.check()
    tokens = scheduler.commit(step, cache.run(step), now).tokens
    scheduler.check()
    return step, tokens


def drive(
    scheduler: Scheduler, cache: ToyCache, note: Callable[[NewToken], None] | None = None
) -> list[Step]:
    """Steps until all requests have ended; fails when there is no progress."""
    steps = []
    while scheduler.running or scheduler.waiting:
        step, tokens = advance(scheduler, cache)
        assert step.chunks, "no progress"
        steps.append(step)
        for token in tokens:
            if note is not None:
                note(token)
    return steps


def pieces(step: Step) -> list[tuple[str, int]]:
    """Who got how many tokens."""
    return [(chunk.request_id, len(chunk.token_ids)) for chunk in step.chunks]
