"""Body of /v1/completions."""

from typing import Any, Final

import msgspec

from fastgen_runtime.front.generation import Generation, Prompt, TextPrompt, TokenPrompt, invalid
from fastgen_runtime.protocols.asked import Asked, Origin, Told
from fastgen_runtime.protocols.openai_fields import (
    NEUTRAL,
    CommonFields,
    check_neutral,
    decode,
    sampling_fields,
    stream_options,
)
from fastgen_runtime.protocols.openai_grammar import grammar_of

MAX_PROMPTS: Final = 256


class CompletionRequest(CommonFields, frozen=True, kw_only=True):
    """prompt: a text, token ids, or a list of either.

    Fields of type Any are let pass or refused: see `check_neutral`.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: Any = None


COMPLETION_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = NEUTRAL | {"suffix": ("",)}

_decoder: Final = msgspec.json.Decoder(CompletionRequest)


def read_completion(body: bytes, origin: Origin) -> Asked:
    """What a body asks for; raises RequestError naming the field."""
    request: CompletionRequest = decode(_decoder, body)
    check_neutral(request, COMPLETION_NEUTRAL)
    fields = sampling_fields(request)
    if request.best_of not in (None, fields["num_choices"]):
        raise invalid("best_of", "must be n: answers are not ranked here")
    grammar, grammar_field = grammar_of(request.response_format, request.structured_outputs)
    of_prompt = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        of_prompt = max(request.logprobs, of_prompt or 0)
    prompts = _prompts(request.prompt)
    generations = tuple(
        Generation(
            prompt=prompt,
            max_tokens=request.max_tokens,
            echo=bool(request.echo),
            num_logprobs=request.logprobs,
            num_prompt_logprobs=of_prompt,
            grammar=grammar,
            tells_prompt_ids=bool(request.return_token_ids),
            **fields,
            **origin.fields,
        )
        for prompt in prompts
    )
    return Asked(
        generations=generations,
        is_stream=bool(request.stream),
        told=Told(
            num_choices=fields["num_choices"],
            num_logprobs=request.logprobs,
            num_prompt_logprobs=request.prompt_logprobs,
            with_token_ids=bool(request.return_token_ids),
            is_echo=bool(request.echo),
            **stream_options(request),
        ),
        field_names={"grammar": grammar_field},
    )


def _prompts(given: str | list[str | int | list[int]]) -> list[Prompt]:
    if isinstance(given, str):
        return [TextPrompt(given)]
    token_ids = [token_id for token_id in given if isinstance(token_id, int)]
    if len(token_ids) == len(given):
        return [TokenPrompt(token_ids)]
    if token_ids:
        raise invalid("prompt", "must be texts or lists of token ids, not token ids among them")
    if len(given) > MAX_PROMPTS:
        raise invalid("prompt", f"may hold at most {MAX_PROMPTS} prompts, not {len(given)}")
    return [
        TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(prompt)
        for prompt in given
        if not isinstance(prompt, int)
    ]
