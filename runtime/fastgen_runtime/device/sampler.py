"""Turns a chunk's sampling settings into a draw: its randomness is of seed and position only."""

from dataclasses import replace

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_runtime.engine.step import Chunk, Sampling


def draws_of(chunk: Chunk, sampling: Sampling) -> list[Draw]:
    """The draws for the tokens after the last `num_drafted + 1` of the chunk."""
    end = chunk.start + len(chunk.token_ids)
    last = draw_of(chunk, sampling)
    before = range(end - chunk.num_drafted, end)
    return [*(replace(last, position=position) for position in before), last]


def draw_of(chunk: Chunk, sampling: Sampling) -> Draw:
    """The draw for the token after the chunk."""
    return Draw(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        position=chunk.start + len(chunk.token_ids),
        adjustment=_adjustment(chunk, sampling),
    )


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
