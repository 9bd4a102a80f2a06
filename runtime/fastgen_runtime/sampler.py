"""Turns a request's sampling settings into a draw that only its seed and position decide."""

from typing import Final

import numpy as np

from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_runtime.step import Sampling

_WORD: Final = 1 << 64


def draw_for(sampling: Sampling, position: int) -> Draw:
    """The draw for the token at `position`; greedy sampling needs no random number."""
    greedy = sampling.temperature <= 0
    uniform = 0.0 if greedy else uniform_at(sampling.seed, position)
    return Draw(0.0 if greedy else sampling.temperature, sampling.top_p, uniform)


def uniform_at(seed: int, position: int) -> float:
    """In [0, 1), by the counter-based generator Philox (Salmon et al., 2011)."""
    # As an array: numpy reads a list with a number of 64 bits as floats, where seeds run together.
    key = np.array([seed % _WORD, 0], np.uint64)
    generator = np.random.Philox(key=key, counter=[position, 0, 0, 0])
    return float(np.random.Generator(generator).random())
