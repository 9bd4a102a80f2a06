"""Fields that OpenAI's two endpoints share; what a body holds is carried out or refused by name.

Beside OpenAI's own fields those of vLLM's server are taken, by the same names.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fastgen_runtime.front.generation import ErrorKind, RequestError, invalid
from fastgen_runtime.front.generation_check import MAX_STOP_STRINGS
from fastgen_runtime.protocols.openai_grammar import ResponseFormat, StructuredOutputs
from fastgen_runtime.protocols.raw_json import json_value

_ANY_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`")
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING_FIELD: Final = re.compile(r"missing required field `([^`]*)`")


_ANY_KEY: Final = "`$.logit_bias[...]`"


class _Biases(msgspec.Struct, frozen=True):
    logit_bias: dict[str, Any] = {}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Any = None


class CommonFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. Fields of type Any are let pass or refused: see `check_neutral`."""

    model: str = ""
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None


WITHOUT_EFFECT: Final = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention",
)  # fmt: skip
"""They label a request, or say how dear a cache may be that costs nothing here."""

NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "stream_options.include_obfuscation": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Values that ask for nothing, besides null; any other is refused."""


def sampling_fields(request: CommonFields) -> dict[str, Any]:
    """The arguments of `Generation` that both endpoints make the same way; raises RequestError."""
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "is only for requests with stream set to true")
    stop = request.stop if request.stop is not None else []
    return {
        "model": request.model,
        "num_choices": 1 if request.n is None else request.n,
        "min_tokens": request.min_tokens or 0,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0 if request.top_k == -1 else request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "logit_bias": request.logit_bias or {},
        "seed": request.seed,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop[: MAX_STOP_STRINGS + 1]),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "ignore_eos": bool(request.ignore_eos),
        "priority": request.priority or 0,
    }


def stream_options(request: CommonFields) -> dict[str, Any]:
    """The arguments of `Told` that say what a stream tells of its usage."""
    options = request.stream_options or StreamOptions()
    return {
        "with_usage": bool(options.include_usage),
        "with_usage_so_far": bool(options.include_usage and options.continuous_usage_stats),
    }


def decode(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    """Raises RequestError naming the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        complaint = str(error)
        if _ANY_KEY in complaint:
            complaint = complaint.replace(_ANY_KEY, f"`$.logit_bias[{_unsound_bias(body)}]`")
        raise explain(complaint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = "" if "byte" in str(error) or "position" in str(error) else f" (byte {len(body)})"
        raise RequestError(
            ErrorKind.INVALID, f"the body is not valid JSON: {error}{where}"
        ) from error
    except RecursionError as error:
        raise RequestError(ErrorKind.INVALID, "the body is nested too deeply") from error


def _unsound_bias(body: bytes) -> str:
    """The first key of `logit_bias` whose value is no number; msgspec does not name it.

    "..." where it cannot be told: the body may be broken behind that value, or hold a second
    `logit_bias`, and the client may also call a field of its own `$.logit_bias[...]`.
    """
    try:
        biases = json_value("logit_bias", body, _Biases).logit_bias
    except RequestError:
        return "..."
    unsound = (key for key, bias in biases.items() if type(bias) not in (int, float))
    return next(unsound, "...")[:64]


def explain(complaint: str, inside: str = "") -> RequestError:
    """msgspec's complaint as an error that begins with the field; inside: the path to the value."""
    path = _ANY_PATH.search(complaint)
    where = ".".join(filter(None, (inside, path.group(1) if path else "")))
    if unknown := _UNKNOWN_FIELD.search(complaint):
        field = f"{where}.{unknown.group(1)}" if where else unknown.group(1)
        return invalid(field[:128], "is not a parameter that is known here")
    message = _ANY_PATH.sub("", complaint)
    if missing := _MISSING_FIELD.search(message):
        where, message = f"{where}.{missing.group(1)}".lstrip("."), "is missing"
    if not where:
        return RequestError(ErrorKind.INVALID, f"the body: {message}")
    return invalid(where[:128], message[:1].lower() + message[1:])


def check_neutral(request: CommonFields, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises RequestError for the first field with a value that would have to be carried out."""
    for field, values in neutral.items():
        value: Any = request
        for name in field.split("."):
            value = getattr(value, name, None)
        if value is None:
            continue
        if not any(type(value) is type(one) and value == one for one in _also_float(values)):
            allowed = f": leave it out or set it to {_show(values[0])}" if values else ""
            raise invalid(field, f"is not supported yet{allowed}")


def _also_float(values: Sequence[Any]) -> list[Any]:
    """JSON has one kind of number: 0 and 0.0 are the same, but false is not 0."""
    return [*values, *(float(value) for value in values if type(value) is int)]


def _show(value: Any) -> str:
    return msgspec.json.encode(value).decode()
