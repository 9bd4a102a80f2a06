"""Clients that each wait for an answer before they ask again, and how good the answers were.

Prompts and answers are as long as in FastGen's own comparison (Holmes et al., 2024, section 4):
around 2,600 and 60 tokens, normally distributed with a deviation of 30 %.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from gpu_cases import Sizes
from gpu_figures import Figure

from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling

DEVIATION: Final = 0.3
GREEDY: Final = Sampling(temperature=0.0)
_PATIENCE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer keeps: seconds to its first token, and per token after it on average."""

    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05


@dataclass(frozen=True, slots=True)
class Wish:
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


@dataclass(slots=True)
class Answer:
    """When a request came, and its tokens."""

    arrived: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.arrived

    @property
    def tpot(self) -> float:
        """0 for answers of one token."""
        return (self.tokens[-1] - self.tokens[0]) / max(1, len(self.tokens) - 1)

    def is_good(self, slo: Slo) -> bool:
        return self.ttft <= slo.ttft_seconds and self.tpot <= slo.tpot_seconds


class Server(Protocol):
    """What clients ask."""

    def add(self, new: NewRequest) -> None: ...

    def step(self) -> list[tuple[str, bool]]:
        """One step: who got a token, and whether it was the last."""
        ...


def wishes(seed: int, count: int, sizes: Sizes) -> list[Wish]:
    """The same for the same seed; all fit into the model's length."""
    rng = np.random.default_rng(seed)
    longest = sizes.model.length - 4 * sizes.answer_tokens

    def around(mean: int, most: int) -> list[int]:
        drawn = np.round(rng.normal(mean, DEVIATION * mean, count))
        return [int(each) for each in np.clip(drawn, 2, most)]

    prompts = around(sizes.prompt_tokens, min(longest, sizes.most_step_tokens))
    answers = around(sizes.answer_tokens, 4 * sizes.answer_tokens)
    return [Wish(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def serve(
    server: Server,
    lists: Sequence[Sequence[Wish]],
    vocabulary: int,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Answer], float]:
    """A closed loop: each list is a client's. Their answers, and how long all took."""
    rng = np.random.default_rng(7)
    begun = clock()
    answers: dict[str, Answer] = {}
    queues = [iter(wishes) for wishes in lists]
    open_now: dict[str, int] = {}

    def ask(client: int) -> None:
        wish = next(queues[client], None)
        if wish is None:
            return
        name = str(len(answers))
        prompt = rng.integers(0, vocabulary, wish.prompt).tolist()
        now = clock()
        server.add(NewRequest(name, prompt, wish.answer, GREEDY, ignore_eos=True, arrived=now))
        answers[name] = Answer(now)
        open_now[name] = client

    for client in range(len(lists)):
        ask(client)
    while open_now:
        told = server.step()
        if not told and clock() - begun > _PATIENCE_SECONDS:
            raise RuntimeError("no token came for too long")
        now = clock()
        for name, is_last in told:
            answers[name].tokens.append(now)
            if is_last:
                ask(open_now.pop(name))
    return list(answers.values()), clock() - begun


def serving_figures(
    name: str, clients: int, answers: Sequence[Answer], took: float, slo: Slo
) -> Iterator[Figure]:
    """Of one way to fill steps and number of clients."""
    case = f"{clients} clients, {name}"
    good = sum(answer.is_good(slo) for answer in answers)
    tokens = sum(len(answer.tokens) for answer in answers)
    ttfts = [1e3 * answer.ttft for answer in answers]
    tpots = [1e3 * answer.tpot for answer in answers]
    for figure, value, unit in (
        ("goodput", good / took, "answers/s"),
        ("answers", len(answers) / took, "answers/s"),
        ("output", tokens / took, "tokens/s"),
        ("TTFT P90", float(np.quantile(ttfts, 0.9)), "ms"),
        ("TPOT P99", float(np.quantile(tpots, 0.99)), "ms"),
    ):
        yield Figure("serving", case, figure, value, unit)
