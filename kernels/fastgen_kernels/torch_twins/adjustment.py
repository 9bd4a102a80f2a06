"""What a request does to the logits before its token is drawn: biases, penalties, bans, a mask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastgen_kernels.torch_twins.ranking import Logits


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """Applied in the order of the fields, which is that of transformers 5 and vLLM.

    bias: added. repetition_penalty: divides positive and multiplies negative logits of tokens in
    prompt or output (Keskar et al., 2019, section 4.1). frequency_penalty, presence_penalty: taken
    off, per occurrence in the output and once. banned_token_ids: never drawn. mask: one bit per
    token id, least significant first, in ceil(V / 32) words; only tokens whose bit is set are
    drawn. Where bans leave nothing of what the mask allows, the mask alone counts; ids that are no
    tokens have no effect.
    """

    bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    banned_token_ids: Sequence[int] = ()
    mask: NDArray[np.int32] | None = None
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()

    def apply(self, logits: Logits) -> Logits:
        """The adjusted logits [V], a copy; raises ValueError for a mask that allows no token."""
        adjusted = logits.copy()
        if self.bias:
            tokens, places = _known(list(self.bias), len(adjusted))
            adjusted[tokens] += np.fromiter(self.bias.values(), np.float32)[places]
        self._penalize(adjusted)
        forbidden = self._forbidden(adjusted)
        if forbidden is not None:
            np.copyto(adjusted, -np.inf, where=forbidden)
        return adjusted

    def _penalize(self, logits: Logits) -> None:
        size = len(logits)
        frequency, presence = np.float32(self.frequency_penalty), np.float32(self.presence_penalty)
        # Counts of 64 bits times a float32 number would be computed in 64 bits.
        counts = _count(self.output_token_ids, size).astype(np.float32)
        if self.repetition_penalty != 1:
            seen = np.flatnonzero((_count(self.prompt_token_ids, size) > 0) | (counts > 0))
            penalty, values = np.float32(self.repetition_penalty), logits[seen]
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if frequency or presence:
            said = np.flatnonzero(counts)
            logits[said] -= frequency * counts[said] + presence

    def _forbidden(self, logits: Logits) -> NDArray[np.bool_] | None:
        masked = None
        if self.mask is not None:
            masked = ~_unpack(self.mask, len(logits))
            if masked.all():
                raise ValueError("a mask allows no token at all")
        if not len(self.banned_token_ids):
            return masked
        forbidden = np.zeros(len(logits), np.bool_) if masked is None else masked.copy()
        forbidden[_known(self.banned_token_ids, len(logits))[0]] = True
        return masked if forbidden.all() else forbidden


def _known(token_ids: Sequence[int], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Those of the ids that are in 0 … size - 1, and their places in the sequence."""
    tokens = np.asarray(token_ids, np.int64)
    places = np.flatnonzero((tokens >= 0) & (tokens < size))
    return tokens[places], places


def _count(token_ids: Sequence[int], size: int) -> NDArray[np.int64]:
    return np.bincount(_known(token_ids, size)[0], minlength=size)


def _unpack(mask: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    words = np.ascontiguousarray(mask).view(np.uint8)
    if len(words) * 8 < size:  # tokens that it does not know
        words = np.pad(words, (0, -(-size // 8) - len(words)))
    return np.unpackbits(words, count=size, bitorder="little").view(np.bool_)
