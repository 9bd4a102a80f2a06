"""A request, as the scheduler sees it: tokens that are known and tokens that are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fastgen_runtime.step import Sampling


class FinishReason(StrEnum):
    """Why a request has all its tokens."""

    STOP = "stop"
    LENGTH = "length"


class RefusalKind(StrEnum):
    """What the client should do about a refusal."""

    FULL = "full"
    """Try again later or elsewhere."""
    TOO_LONG = "too_long"
    """Send less: it can never fit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not taken; a value, never an exception."""

    kind: RefusalKind
    message: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What a client asks of the engine. max_tokens: most output tokens, at least 1."""

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    ignore_eos: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine.

    token_ids: prompt and output. num_computed: how many of them are in the KV cache.
    num_counted: the most that was ever computed, so that recomputing counts nothing twice.
    """

    new: NewRequest
    arrival: int
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    num_counted: int = 0
    block_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token_ids = list(self.new.prompt_token_ids)

    @property
    def request_id(self) -> str:
        return self.new.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.new.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_owed(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.token_ids) - self.num_computed
