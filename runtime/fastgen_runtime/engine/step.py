"""What the scheduler hands to the runner, and what comes back: one forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TokenMask = NDArray[np.int32]
"""One bit per token id, least significant bit first: 1 allows it. [ceil(vocabulary / 32)] words."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token of a request is chosen; the defaults change nothing.

    temperature: 0 is greedy. top_k: 0 for all. top_p: nucleus, in (0, 1]. min_p: least probability,
    as a share of the likeliest token's. repetition_penalty: divides positive and multiplies
    negative logits of tokens in prompt and output. frequency_penalty, presence_penalty: taken off
    the logits of tokens in the output, per occurrence and once. logit_bias: added to the logits.
    seed: key of the counter-based generator; the draw at a position depends on (seed, position)
    only. num_logprobs: how many of the likeliest tokens' log probabilities are told beside the
    chosen one's; None: none at all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of a token's probability and of the likeliest ones', likeliest first.

    Before temperature, penalties, biases and masks: what the model thought. rank: 1 for the
    likeliest token.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one request: `token_ids` at positions `start`, `start + 1`, ….

    block_ids: the request's block table, in order; it covers at least `start + len(token_ids)`
    positions, and positions below `start` are in the KV cache already. sampling: set when the
    token after the last one is wanted, that is when the chunk ends at the request's last token;
    only then the next four matter. prompt_token_ids, output_token_ids: the whole request so far,
    for penalties. banned_token_ids: may not be chosen. mask: what the grammar allows.
    num_prompt_logprobs: when not None, the log probabilities of `targets`, the prompt's tokens
    after each of the chunk's (fewer than token_ids where the prompt ends), are wanted.
    num_drafted: how many of token_ids, the last ones, are guesses; the tokens after the last one
    before them and after each of them are wanted.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    sampling: Sampling | None
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    banned_token_ids: Sequence[int] = ()
    mask: TokenMask | None = None
    num_prompt_logprobs: int | None = None
    targets: Sequence[int] = ()
    num_drafted: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The chunks of one forward pass; at most one chunk per request."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass computes."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a chunk brought: its next token, where one was wanted, and log probabilities.

    further_token_ids: the tokens after each of its guesses, which count as far as those are right;
    fewer where one was no finite number. failed: why its request cannot go on; the rest says
    nothing then.
    """

    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    failed: str | None = None
    further_token_ids: Sequence[int] = ()
