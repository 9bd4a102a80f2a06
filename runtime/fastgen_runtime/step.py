"""What the scheduler hands to the runner: the tokens of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token of a request is chosen.

    temperature: 0 is greedy. top_p: nucleus, in (0, 1]. seed: key of the counter-based generator;
    the draw at a position depends on (seed, position) only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one request: `token_ids` at positions `start`, `start + 1`, ….

    block_ids: the request's block table, in order; it covers at least `start + len(token_ids)`
    positions, and positions below `start` are in the KV cache already. sampling: set when the
    token after the last one is wanted, that is when the chunk ends at the request's last token.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    sampling: Sampling | None


@dataclass(frozen=True, slots=True)
class Step:
    """The chunks of one forward pass; at most one chunk per request."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass computes."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)
