"""What a call of a pipeline may ask for, by DeepSpeed-MII's names and our own."""

from collections.abc import Sequence
from typing import Final, TypedDict

import msgspec

from fastgen_runtime.front.generation import Generation, RequestError, TextPrompt, invalid


class Parameters(TypedDict, total=False):
    """What is left out takes the model's default.

    max_length: of prompt and answer together; max_new_tokens, min_new_tokens: of the answer.
    do_sample: False takes the likeliest token always. stop: one string or several. top_k: 0 for
    all. return_full_text: the text begins with the prompt. logprobs: how many of the likeliest
    tokens are told for each token of the answer, beside itself. seed: prompt number i is drawn
    with seed + i. The others: as in `step.Sampling`.
    """

    max_new_tokens: int | None
    min_new_tokens: int
    max_length: int | None
    do_sample: bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: dict[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    return_full_text: bool
    logprobs: int | None
    priority: int


KNOWN: Final = tuple(Parameters.__annotations__)
_NAMES_HERE: Final = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}


def read_parameters(given: Parameters) -> Parameters:
    """The parameters, of the right types; raises TypeError naming the one that is wrong."""
    for name in given:
        if name not in KNOWN:
            raise TypeError(
                f"{name} is no parameter of a pipeline; there are: {', '.join(KNOWN)}, on_token"
            )
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, Parameters)
        except msgspec.ValidationError as error:
            raise TypeError(f"{name}: {str(error).partition(' - at')[0]}") from None
    return given


def to_generation(prompt: str, number: int, given: Parameters) -> Generation:
    """What the prompt at place `number` of a call asks for; raises RequestError."""
    temperature, seed = given.get("temperature"), given.get("seed")
    do_sample = given.get("do_sample")
    if do_sample is False:
        if temperature:
            raise invalid("do_sample", f"is False, which contradicts temperature {temperature:g}")
        temperature = 0.0
    elif do_sample and temperature is None:
        temperature = 1.0
    return Generation(
        prompt=TextPrompt(prompt),
        max_tokens=given.get("max_new_tokens"),
        min_tokens=given.get("min_new_tokens", 0),
        temperature=temperature,
        top_p=given.get("top_p"),
        top_k=given.get("top_k"),
        min_p=given.get("min_p"),
        repetition_penalty=given.get("repetition_penalty"),
        frequency_penalty=given.get("frequency_penalty"),
        presence_penalty=given.get("presence_penalty"),
        logit_bias=given.get("logit_bias", {}),
        seed=None if seed is None else seed + number,
        stop=_strings(given.get("stop", ())),
        stop_token_ids=tuple(given.get("stop_token_ids", ())),
        ignore_eos=given.get("ignore_eos", False),
        num_logprobs=given.get("logprobs"),
        priority=given.get("priority", 0),
    )


def name_as_here(error: RequestError) -> RequestError:
    """The same error by the names of a pipeline's parameters."""
    message = error.message
    for theirs, ours in _NAMES_HERE.items():
        message = message.replace(theirs, ours)
    field = None if error.field is None else _NAMES_HERE.get(error.field, error.field)
    return RequestError(error.kind, message, field)


def _strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)
