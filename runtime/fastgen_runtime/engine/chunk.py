"""Cuts the next chunk out of a request."""

from collections.abc import Collection, Sequence

from fastgen_runtime.engine.request import Request
from fastgen_runtime.engine.step import Chunk, Sampling, TokenMask


def make_chunk(
    request: Request,
    piece: int,
    end_token_ids: Collection[int],
    drafted: Sequence[int] = (),
) -> Chunk:
    """The request's next `piece` tokens and `drafted`; its block table covers them already.

    end_token_ids: the model's, which end an answer. drafted: guesses of what comes after its last
    token, which the piece ends with.
    """
    new, start = request.new, request.num_computed
    end = start + piece
    wants_logprobs = new.num_prompt_logprobs is not None
    targets = _targets(request, start, end) if wants_logprobs else ()
    token_ids = request.token_ids[start:end]
    block_ids = tuple(request.block_ids)
    logprobs = new.num_prompt_logprobs if targets else None
    if end < len(request.token_ids):
        return Chunk(
            request.request_id,
            token_ids,
            start,
            block_ids,
            sampling=None,
            num_prompt_logprobs=logprobs,
            targets=targets,
        )
    mask = None if request.constraint is None else request.constraint.mask()
    token_ids += drafted
    is_early = request.num_output_tokens < new.min_tokens
    is_penalised = needs_tokens(new.sampling)
    return Chunk(
        request.request_id,
        token_ids,
        start,
        block_ids,
        new.sampling,
        num_drafted=len(drafted),
        # Copies of long requests in each step would cost more than all else here.
        prompt_token_ids=new.prompt_token_ids if is_penalised else (),
        output_token_ids=request.token_ids[request.num_prompt_tokens :] if is_penalised else (),
        banned_token_ids=_banned(request, end_token_ids, mask) if is_early else (),
        mask=mask,
        num_prompt_logprobs=logprobs,
        targets=targets,
    )


def _targets(request: Request, start: int, end: int) -> Sequence[int]:
    """The prompt's tokens after those of a chunk, unless all their log probabilities are known."""
    if not request.wants_prompt_logprobs:
        return ()
    last = min(end, request.num_prompt_tokens - 1)
    if last <= len(request.prompt_logprobs):
        return ()
    return request.token_ids[start + 1 : last + 1]


def needs_tokens(sampling: Sampling) -> bool:
    """Whether the next token depends on how often others came before."""
    return (
        sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
    )


def _banned(
    request: Request, end_token_ids: Collection[int], mask: TokenMask | None
) -> Sequence[int]:
    """What may not be chosen before the request has its fewest tokens."""
    ends = () if request.new.ignore_eos else end_token_ids
    banned = sorted({*ends, *request.new.stop_token_ids})
    if mask is None:
        return banned
    left = mask.copy()
    for token_id in banned:
        if 0 <= token_id < 32 * len(left):
            left[token_id // 32] &= ~(1 << (token_id % 32)) if token_id % 32 < 31 else 0x7FFFFFFF
    # An output that is complete by its grammar has no other token than an end.
    return banned if left.any() else ()
