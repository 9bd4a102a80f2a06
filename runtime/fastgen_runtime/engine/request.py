"""A request, as the scheduler sees it: tokens that are known and tokens that are computed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Protocol, TypeAlias

import msgspec

from fastgen_runtime.engine.blocks import NO_PARENT, chain_digest, chain_start
from fastgen_runtime.engine.lookup import Lookup
from fastgen_runtime.engine.step import Sampling, TokenLogprobs, TokenMask

Turn: TypeAlias = tuple[int, bool, float, int]
"""What requests take their turns by: the least first."""


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
    EXPIRED = "expired"
    """Its deadline passed before it was complete."""
    INVALID = "invalid"
    """Send something else: the grammar cannot be used."""
    FAILED = "failed"
    """The model's trouble, not the client's."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not taken; a value, never an exception."""

    kind: RefusalKind
    message: str


class GrammarKind(StrEnum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the output must match from its first token to its end token."""

    kind: GrammarKind
    text: str


class Constraint(Protocol):
    """A grammar at work on one request's output: `fastgen_runtime.engine.grammar`."""

    def mask(self) -> TokenMask:
        """The tokens that may come next; only end tokens once the output is complete."""
        ...

    def accept(self, token_id: int) -> bool:
        """Takes the next token; True when the output is complete and cannot go on."""
        ...


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What a client asks of the engine.

    max_tokens: most output tokens, at least 1. min_tokens: so many come before an end or stop
    token may. stop_token_ids: each ends the output, besides the model's end tokens. priority:
    smaller ones go first. arrived, deadline: on `time.monotonic`'s clock. waited: seconds at a
    balancer before. num_prompt_logprobs: see `Chunk`. group: requests of the same prompt and group
    share its blocks, prefix cache or not.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    priority: int = 0
    arrived: float = 0.0
    deadline: float | None = None
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    group: str = ""
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """Comes with a request's first token.

    queue_seconds: from its arrival to its first chunk. cached_tokens: prompt tokens that were not
    computed, since others had. prompt_logprobs: of the prompt's tokens from the second on.
    """

    queue_seconds: float
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class NewToken(msgspec.Struct, frozen=True, array_like=True):
    """A token of a request; `finish` is set on its last one, `started` on its first.

    Made and sent for every token there is: a Struct is, in a fifth of a dataclass' time.
    """

    request_id: str
    token_id: int
    finish: FinishReason | None
    logprobs: TokenLogprobs | None = None
    started: Started | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine.

    constraint: what its grammar allows next. chain: where the digests of its blocks begin; None
    when it shares nothing. due: when its first token should come. late_at: from when on it misses
    its target. is_late: whether it waits behind those that may still be in time. token_ids: prompt
    and output.
    num_computed: how many of them are in the KV cache. num_counted: the most that was ever computed
    or found in the cache, so that recomputing counts nothing twice. digests: of the full blocks of
    `token_ids`. num_published: how many blocks of its table the pool knows the content of.
    num_hits: how many of them it found there. num_cached: prompt tokens that it never had to
    compute. prompt_logprobs: of the prompt's tokens from the second on, as far as they are known.
    queue_seconds, first_token_at: None before the first chunk and token. forecast: output tokens
    that it was taken to have when it arrived. lookup: where its next tokens are guessed from; None
    where they are not.
    """

    new: NewRequest
    arrival: int
    constraint: Constraint | None = None
    chain: bytes | None = None
    due: float = 0.0
    late_at: float = inf
    is_late: bool = False
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    num_computed: int = 0
    num_counted: int = 0
    block_ids: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_published: int = 0
    num_hits: int = 0
    num_cached: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    queue_seconds: float | None = None
    first_token_at: float | None = None
    forecast: int = 0
    lookup: Lookup | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.new.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def request_id(self) -> str:
        return self.new.request_id

    @property
    def priority(self) -> int:
        return self.new.priority

    @property
    def order(self) -> Turn:
        """Its turn among others: by importance, then by when its first token is due, those last
        who miss that whatever happens."""
        return self.new.priority, self.is_late, self.due, self.arrival

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_owed(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.token_ids) - self.num_computed

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether some of the prompt's tokens must be computed for their log probabilities."""
        # With the first token they were all told.
        wanted = self.new.num_prompt_logprobs is not None and self.first_token_at is None
        return wanted and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    def num_matchable(self, block_size: int) -> int:
        """The most full blocks that need not be computed; the last token always is."""
        if self.chain is None:
            return 0
        if self.wants_prompt_logprobs:
            return len(self.prompt_logprobs) // block_size
        return (len(self.token_ids) - 1) // block_size

    def extend_digests(self, block_size: int) -> None:
        """Adds the digests of blocks that `token_ids` has filled since."""
        if self.chain is None:
            return
        for end in range((len(self.digests) + 1) * block_size, len(self.token_ids) + 1, block_size):
            parent = self.digests[-1] if self.digests else self.chain
            self.digests.append(chain_digest(parent, self.token_ids[end - block_size : end]))


def turn_of(request: Request) -> Turn:
    """Its turn, for sorted lists."""
    return request.order


def chain_of(new: NewRequest, prefix_caching: bool) -> bytes | None:
    """What the digests of its blocks begin with; None: it shares no blocks."""
    if prefix_caching:
        return NO_PARENT
    return chain_start(new.group) if new.group else None


def finish_reason(
    request: Request, token_id: int, eos_token_ids: Collection[int]
) -> FinishReason | None:
    """Why the token that a request has just got is its last one; a constraint takes it, too."""
    is_complete = request.constraint is not None and request.constraint.accept(token_id)
    if is_complete or token_id in request.new.stop_token_ids:
        return FinishReason.STOP
    if token_id in eos_token_ids and not request.new.ignore_eos:
        return FinishReason.STOP
    if request.num_output_tokens >= request.new.max_tokens:
        return FinishReason.LENGTH
    return None
