"""Chooses tokens: greedy, temperature, nucleus (Holtzman et al., 2020, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_LIKELIEST: Final = (128, 2048)
"""How many tokens are ranked in search of the nucleus, before all are: sorting a whole vocabulary
takes as long as computing the token."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is chosen: temperature 0 is greedy; uniform: in [0, 1)."""

    temperature: float
    top_p: float
    uniform: float


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token per row of logits [R, vocabulary].

    A row's token depends on its own logits and draw only, by the inverse of the cumulative
    distribution at `uniform`.
    """
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, draw in enumerate(draws):
        if draw.temperature > 0:
            tokens[row] = _sample_row(logits[row], draw, tokens[row])
    return tokens


def _sample_row(logits: Tensor, draw: Draw, greedy: int) -> int:
    # Subtracting the maximum first: a tiny temperature must not turn finite logits infinite.
    shifted = (logits.double() - logits.max()) / draw.temperature
    probabilities = torch.softmax(shifted, -1)
    if draw.top_p >= 1:
        return _invert(probabilities, draw.uniform, greedy)
    ranked, tokens = _rank(probabilities, draw.top_p)
    # The nucleus: every token before which less than top_p has been gathered; never empty.
    before = ranked.cumsum(-1) - ranked
    ranked = ranked[before < draw.top_p]
    if len(ranked) <= 1:
        return greedy
    return int(tokens[_invert(ranked / ranked.sum(), draw.uniform, 0)])


def _rank(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest probabilities, falling, and their tokens: as many as add up to top_p."""
    for count in _LIKELIEST:
        if count < len(probabilities):
            ranked, tokens = probabilities.topk(count)
            if float(ranked.sum()) >= top_p:
                return ranked, tokens
    ranked, tokens = probabilities.sort(descending=True)
    return ranked, tokens


def _invert(probabilities: Tensor, uniform: float, fallback: int) -> int:
    """First index whose cumulative probability exceeds `uniform`."""
    cumulative = probabilities.cumsum(-1)
    # Scaled by the total, so that rounding leaves no gap below 1.
    wanted = uniform * float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, wanted, right=True))
    return index if index < len(cumulative) else fallback
