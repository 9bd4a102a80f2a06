"""Turns a chunk's sampling settings into a draw: its randomness is of seed and position only."""

from typing import Final

import numpy as np

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import COLDEST, Draw
from fastgen_runtime.engine.step import Chunk, Sampling

_WORD: Final = 1 << 64


def draw_of(chunk: Chunk, sampling: Sampling) -> Draw:
    """The draw for the token after the chunk; greedy sampling needs no random number."""
    greedy = sampling.temperature < COLDEST
    return Draw(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        uniform=0.0 if greedy else uniform_at(sampling.seed, chunk.start + len(chunk.token_ids)),
        adjustment=_adjustment(chunk, sampling),
    )


def uniform_at(seed: int, position: int) -> float:
    """In [0, 1), by the counter-based generator Philox (Salmon et al., 2011)."""
    # As an array: numpy reads a list with a number of 64 bits as floats, where seeds run together.
    key = np.array([seed % _WORD, 0], np.uint64)
    generator = np.random.Philox(key=key, counter=[position, 0, 0, 0])
    return float(np.random.Generator(generator).random())


def _adjustment(chunk: Chunk, sampling: Sampling) -> Adjustment | None:
    """None where the request changes no logits, as most do not."""
    if (
        sampling.repetition_penalty == 1
        and sampling.frequency_penalty == 0
        and sampling.presence_penalty == 0
        and not sampling.logit_bias
        and not len(chunk.banned_token_ids)
        and chunk.mask is None
    ):
        return None
    return Adjustment(
        bias=sampling.logit_bias,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        banned_token_ids=chunk.banned_token_ids,
        mask=chunk.mask,
        prompt_token_ids=chunk.prompt_token_ids,
        output_token_ids=chunk.output_token_ids,
    )
