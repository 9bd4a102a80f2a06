"""Draws as arrays: all that a step's tokens are chosen by, ready for one copy to the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import COLDEST, Draw

SEEN: Final = 1
BANNED: Final = 2
_WORD: Final = 1 << 64

Reals = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DrawTable:
    """Of R rows.

    reals: [R, 6] temperature (0: greedy), top_p, min_p, repetition, frequency and presence penalty.
    integers: [R, 4] seed (its 64 bits), position, top_k (0: all), row of `masks` or -1.
    edits: [E, 4] row, token id, occurrences in the output, SEEN | BANNED; each place once.
    biases: [E] added to the logits of edits. masks: [M, words] bits of allowed tokens.
    """

    reals: Reals
    integers: Integers
    edits: Integers
    biases: Reals
    masks: NDArray[np.int32]

    @classmethod
    def of(cls, draws: Sequence[Draw], size: int) -> "DrawTable":
        """For logits of `size` tokens; raises ValueError for a mask that allows none of them."""
        reals = np.empty((len(draws), 6), np.float32)
        integers = np.empty((len(draws), 4), np.int64)
        edits, biases = [np.empty((0, 4), np.int64)], [np.empty(0, np.float32)]
        masks: list[NDArray[np.int32]] = []
        for row, draw in enumerate(draws):
            adjustment = draw.adjustment or _NOTHING
            masked, mask_row = None, -1
            if adjustment.mask is not None:
                mask = _fitted(adjustment.mask, size)
                masked, mask_row = mask, len(masks)
                masks.append(mask)
            reals[row] = (
                0 if draw.temperature < COLDEST else draw.temperature, draw.top_p, draw.min_p,
                adjustment.repetition_penalty, adjustment.frequency_penalty,
                adjustment.presence_penalty,
            )  # fmt: skip
            top_k = draw.top_k if draw.top_k < size else 0
            integers[row] = (_signed(draw.seed), draw.position, top_k, mask_row)
            if draw.adjustment is not None:
                places, added = _edits(draw.adjustment, masked, size)
                edits.append(np.insert(places, 0, row, axis=1))
                biases.append(added)
        words = np.stack(masks) if masks else np.empty((0, -(-size // 32)), np.int32)
        return cls(reals, integers, np.concatenate(edits), np.concatenate(biases), words)


_NOTHING: Final = Adjustment()


def _signed(seed: int) -> int:
    """The number of 64 bits with the same bits, as int64."""
    word = seed % _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _edits(
    adjustment: Adjustment, mask: NDArray[np.int32] | None, size: int
) -> tuple[Integers, Reals]:
    """Token ids, occurrences and flags [E, 3] of what changes, and what is added [E]."""
    bias = _known(list(adjustment.bias), size)
    banned = _known(adjustment.banned_token_ids, size)
    if len(banned) and not _leaves_some(banned, mask, size):
        banned = banned[:0]  # then the mask alone counts
    output = prompt = bias[:0]
    if adjustment.repetition_penalty != 1:
        prompt = _known(adjustment.prompt_token_ids, size)
    if (
        adjustment.repetition_penalty != 1
        or adjustment.frequency_penalty
        or adjustment.presence_penalty
    ):
        output = _known(adjustment.output_token_ids, size)
    tokens, places = np.unique(np.concatenate((bias, banned, prompt, output)), return_inverse=True)
    ends = np.cumsum([len(bias), len(banned), len(prompt)])
    flags, added = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.float32)
    counts = np.bincount(places[ends[2] :], minlength=len(tokens))
    flags[places[ends[1] :]] |= SEEN
    flags[places[ends[0] : ends[1]]] |= BANNED
    added[places[: ends[0]]] = [adjustment.bias[token] for token in bias.tolist()]
    return np.stack((tokens, counts, flags), axis=1), added


def _leaves_some(banned: Integers, mask: NDArray[np.int32] | None, size: int) -> bool:
    if mask is None:
        return len(np.unique(banned)) < size
    allowed = _bits(mask, size)
    allowed[banned] = False
    return bool(allowed.any())


def _fitted(mask: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """In ceil(size / 32) words: tokens that a mask does not know are not allowed."""
    words = np.zeros(-(-size // 32), np.int32)
    known = np.ascontiguousarray(mask)[: len(words)]
    words[: len(known)] = known
    if not _bits(words, size).any():
        raise ValueError("a mask allows no token at all")
    return words


def _bits(mask: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), count=size, bitorder="little").view(np.bool_)


def _known(token_ids: Sequence[int], size: int) -> Integers:
    tokens = np.asarray(token_ids, np.int64)
    return tokens[(tokens >= 0) & (tokens < size)]
