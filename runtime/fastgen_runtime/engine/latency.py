"""How long a step takes: a model that learns from each step, and forgets.

Seconds ≈ base + per token + per pair of token and token attended to + per request, none negative,
so more work never seems to take less time. Linear models of a step's content predict it well
enough to choose a budget by (QoServe, arXiv 2503.22562, section 4).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastgen_runtime.engine.step import Chunk, Step

_SCALES: Final = np.array([1.0, 64.0, 65536.0, 8.0])
"""So that the features of usual steps are of the same order."""
_WARM_UP: Final = 2
"""First steps that tell nothing: memory is touched and threads are started for the first time."""
_STRATA: Final = 10
_KEPT: Final = 0.95
"""What a stratum keeps at each new step: some twenty steps count."""
_MATURE: Final = 6.0
"""Steps' worth of memory that a stratum needs before a step can be called unusual."""
_UNUSUAL: Final = 1.3
_IN_A_ROW: Final = 4
"""Unusual steps in a row that make a machine slower or faster, not a step an outlier."""
_MOST: Final = 2.0
"""A single unusual step counts as no more times longer or shorter than this."""
_STIFFNESS: Final = 1e-3
"""How strongly what the last steps say nothing about stays as it was."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's time depends on. num_attended: pairs of a token and one that it attends to."""

    num_tokens: int
    num_attended: int
    num_requests: int


def shape_of(step: Step) -> StepShape:
    """The shape of a step."""
    return shape_of_chunks(piece for chunk in step.chunks for piece in pieces_of(chunk))


def pieces_of(chunk: Chunk) -> Iterable[tuple[int, int]]:
    """A chunk as starts and numbers of tokens: guesses are as many answers', each with logits."""
    length = len(chunk.token_ids)
    if not chunk.num_drafted:
        return ((chunk.start, length),)
    return ((chunk.start + index, 1) for index in range(length))


def shape_of_chunks(chunks: Iterable[tuple[int, int]]) -> StepShape:
    """The shape of a step of chunks, each its start and its number of tokens."""
    tokens = attended = requests = 0
    for start, length in chunks:
        tokens += length
        attended += length * start + length * (length + 1) // 2
        requests += 1
    return StepShape(tokens, attended, requests)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step, and each part of it, takes; none is negative.

    caution: by what factor a step may take longer than predicted, from how wrong the last
    predictions were.
    """

    base: float
    per_token: float
    per_attended: float
    per_request: float
    caution: float = 1.0

    def seconds(self, shape: StepShape) -> float:
        """What a step of this shape should take."""
        return (
            self.base
            + self.per_token * shape.num_tokens
            + self.per_attended * shape.num_attended
            + self.per_request * shape.num_requests
        )

    def tokens_within(self, seconds: float, start: int, most: int) -> int:
        """The largest chunk from position `start` on that adds at most so many seconds."""
        left = seconds - self.per_request
        if left <= 0:
            return 0
        quadratic = self.per_attended / 2
        linear = self.per_token + self.per_attended * (start + 0.5)
        root = math.sqrt(linear * linear + 4 * quadratic * left)
        if linear + root <= 2 * left / most:
            return most
        return int(2 * left / (linear + root))

    def chunk_seconds(self, start: int, length: int) -> float:
        """What a chunk adds to a step."""
        attended = length * start + length * (length + 1) / 2
        return self.per_request + self.per_token * length + self.per_attended * attended


class LatencyModel:
    """Weighted least squares over the last steps, with non-negative coefficients.

    Relative errors count, and each order of magnitude of step sizes (a stratum) forgets by itself:
    an hour of short steps does not blur what long ones take. A step that is far from its
    prediction waits for the next ones: alone it is an outlier and counts little; several in a row
    mean that the machine has another speed, and all that is known is scaled.
    """

    __slots__ = ("_coefficients", "_late", "_num_steps", "_sums", "_unusual", "_weights")

    def __init__(self) -> None:
        self._coefficients = np.zeros(4)
        # Per stratum Σ w x xᵀ and, as the last column, Σ w x y.
        self._sums = np.zeros((_STRATA, 4, 5))
        self._weights = [0.0] * _STRATA
        self._unusual: list[tuple[StepShape, float, float]] = []
        self._num_steps = 0
        self._late = 0.0

    @property
    def cost(self) -> StepCost | None:
        """What steps take; None before anything is known."""
        if not any(self._weights):
            return None
        base, token, attended, request = (self._coefficients / _SCALES).tolist()
        return StepCost(base, token, attended, request, min(1.05 + 5 * self._late, 2.0))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step was computed."""
        self._num_steps += 1
        if self._num_steps <= _WARM_UP or seconds <= 0 or not shape.num_tokens:
            return
        cost = self.cost
        if cost is None:
            self._learn([(shape, seconds)])
            return
        predicted = cost.seconds(shape)
        ratio = seconds / predicted if predicted > 0 else 1.0
        self._late = 0.9 * self._late + 0.1 * min(max(ratio - 1, 0.0), 1.0)
        if not self._is_known(_stratum(shape)) or 1 / _UNUSUAL < ratio < _UNUSUAL:
            self._learn([*self._softened(), (shape, seconds)])
            return
        if self._unusual and (self._unusual[-1][2] > 1) != (ratio > 1):
            self._learn(self._softened())
        self._unusual.append((shape, seconds, ratio))
        if len(self._unusual) == _IN_A_ROW:
            self._rescale(sorted(ratio for _, _, ratio in self._unusual)[_IN_A_ROW // 2])
            self._learn([(shape, seconds) for shape, seconds, _ in self._unusual])
            self._unusual.clear()

    def _is_known(self, stratum: int) -> bool:
        """Whether steps of this size, or shorter and longer ones, have been seen."""
        mature = [i for i, weight in enumerate(self._weights) if weight >= _MATURE]
        return bool(mature) and mature[0] <= stratum <= mature[-1]

    def _softened(self) -> list[tuple[StepShape, float]]:
        """The unusual steps as outliers; they wait no longer."""
        steps = [
            (shape, seconds / ratio * min(max(ratio, 1 / _MOST), _MOST))
            for shape, seconds, ratio in self._unusual
        ]
        self._unusual.clear()
        return steps

    def _rescale(self, factor: float) -> None:
        self._coefficients *= factor
        self._sums[:, :, :4] /= factor * factor
        self._sums[:, :, 4] /= factor

    def _learn(self, steps: list[tuple[StepShape, float]]) -> None:
        for shape, seconds in steps:
            features = (1.0, shape.num_tokens, shape.num_attended, shape.num_requests)
            row = np.append(np.array(features) / _SCALES, seconds) / seconds
            stratum = _stratum(shape)
            self._sums[stratum] *= _KEPT
            self._sums[stratum] += np.outer(row[:4], row)
            self._weights[stratum] = _KEPT * self._weights[stratum] + 1
        if steps:
            sums = self._sums.sum(axis=0)
            stiffness = _STIFFNESS * sums.diagonal()
            self._coefficients = solve_nonnegative(
                sums[:, :4] + np.diag(stiffness), sums[:, 4] + stiffness * self._coefficients
            )


def _stratum(shape: StepShape) -> int:
    return min(shape.num_tokens.bit_length() // 2, _STRATA - 1)


def solve_nonnegative(
    matrix: NDArray[np.float64], vector: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The solution whose negative parts are set to zero and left out, until there are none.

    matrix: n × n, vector: n, as of normal equations.
    """
    solution = np.zeros(len(vector))
    active = np.arange(len(vector))
    while active.size:
        part = np.linalg.solve(matrix[np.ix_(active, active)], vector[active])
        if (part >= 0).all():
            solution[active] = part
            break
        active = active[part > 0]
    return solution
