"""Chooses tokens: greedy, or drawn from the distribution that temperature, top-k, top-p and min-p
leave.

The order is transformers': bias, penalties, bans and mask (`adjustment`), then temperature, then
top-k (Fan et al., 2018, section 3.2), top-p (Holtzman et al., 2020, section 3.1) of what is left,
min-p (Nguyen et al., 2024, section 3). Of what is left, the token that wins an exponential race is
drawn (Efraimidis and Spirakis, 2006; with logarithms it is the Gumbel-max trick): rounding, which
differs from batch to batch, decides only where two tokens come in together. Where the inverse of a
cumulative distribution falls, it would decide for one token in twenty of a flat distribution.

The numbers lie in numpy's arrays: on CPUs its argmax, sort and partition take a tenth of the time
of torch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.ranking import Logits, TokenIds, highest, highest_values

COLDEST: Final = 1e-5
"""Lower temperatures are greedy: what they would draw between differs by rounding only."""
_LIKELIEST: Final = 1024
"""How many tokens are ranked in search of the nucleus, before all are."""
_WORD: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is chosen.

    temperature: 0 is greedy. top_k: 0 for all. top_p: in (0, 1]. min_p: in [0, 1). seed, position:
    all that the draw's randomness depends on. adjustment: None changes nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    adjustment: Adjustment | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST


def sample(
    logits: Tensor, draws: Sequence[Draw], vocabulary: int | None = None
) -> list[int | None]:
    """One token per row of logits [R, V], any float dtype, which stay as they are.

    None for a row whose largest logit is no finite number: no token would mean anything.

    A row's token depends on its own logits and draw only. vocabulary: ids from there on are padding
    and never chosen. Raises ValueError for a mask that allows no token.
    """
    rows: Logits = logits[:, :vocabulary].float().cpu().numpy()
    return [_choose(row, draw) for row, draw in zip(rows, draws, strict=True)]


def _choose(row: Logits, draw: Draw) -> int | None:
    greedy = int(row.argmax())  # a NaN counts as the largest
    if not np.isfinite(row[greedy]):
        return None
    if draw.adjustment is not None:
        row = draw.adjustment.apply(row)
        greedy = int(row.argmax())
    # Adjusted by what a client asks, the largest may be infinite.
    if draw.greedy or not np.isfinite(row[greedy]):
        return greedy
    tokens, weights = distribution(row, draw)
    if tokens is None:
        return _race(exponentials(draw.seed, draw.position, len(row)), weights)
    times = exponentials(draw.seed, draw.position, int(tokens[-1]) + 1)[tokens]
    return int(tokens[_race(times, weights)])


def random_words(seed: int, position: int, count: int) -> NDArray[np.uint64]:
    """[count] words of 64 bits; the one of a token id is the same for any count.

    By the counter-based generator Philox (Salmon et al., 2011), whose 256 bits of counter hold the
    position above the token: no two positions have a word in common.
    """
    # As an array: numpy reads a list with a number of 64 bits as floats, where seeds run together.
    key = np.array([seed % _WORD, 0], np.uint64)
    words: NDArray[np.uint64] = np.random.Philox(key=key, counter=[0, position, 0, 0]).random_raw(
        count
    )
    return words


def exponentials(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """[count] exponentially distributed numbers, of a random word each."""
    words = random_words(seed, position, count)
    words >>= np.uint64(12)
    numbers = words.astype(np.float64)
    numbers += 0.5  # in 53 bits, neither 0 nor 1 after the division
    numbers *= 2.0**-52
    np.log(numbers, out=numbers)
    return np.negative(numbers, out=numbers)


def _race(times: NDArray[np.float64], weights: NDArray[np.float32]) -> int:
    """The first to come in: each is as likely to as its weight is large."""
    with np.errstate(divide="ignore"):  # a token without weight never does
        return int((times / weights).argmin())


def distribution(row: Logits, draw: Draw) -> tuple[TokenIds | None, NDArray[np.float32]]:
    """Tokens of the adjusted logits [V] that may be drawn, rising (None: all), and their weights.

    A weight is a probability, as a share of the likeliest token's. top_k and top_p keep the
    likeliest, among equals the smaller token ids; never none.
    """
    best, tokens = row.max(), None
    if 0 < draw.top_k < len(row):
        tokens = highest(row, draw.top_k)
        row = row[tokens]
    weights = _weigh(row, best, draw.temperature)
    if draw.top_p < 1:
        gathered = draw.top_p * float(weights.sum(dtype=np.float64))
        kept = _nucleus(row, best, draw.temperature, gathered)
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    if draw.min_p > 0:
        # The likeliest token's weight is 1: it stays.
        kept = np.flatnonzero(weights >= np.float32(draw.min_p))
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    return tokens, weights


def _weigh(row: Logits, best: np.float32, temperature: float) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # as far below the best as that has no probability
        weights: NDArray[np.float32] = np.exp((row - best) / np.float32(temperature))
    return weights


def _nucleus(row: Logits, best: np.float32, temperature: float, gathered: float) -> TokenIds:
    """Every token before which, from the likeliest on, less than `gathered` weight has come."""
    for count in (min(_LIKELIEST, len(row)), len(row)):
        ranked = highest_values(row, count)
        sums = np.cumsum(_weigh(ranked, best, temperature), dtype=np.float64)
        if sums[-1] >= gathered:
            break
    size = min(int(np.searchsorted(sums, gathered)) + 1, len(row))
    return highest(row, size, float(ranked[size - 1]))
