"""OpenAI's request and response bodies, as far as they are implemented.

Whatever a body holds is carried out or refused by name; `_WITHOUT_EFFECT` lists the few fields that
change no answer and are let pass.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fastgen_runtime.answer import Usage
from fastgen_runtime.generation import (
    MAX_STOP_STRINGS,
    ChatMessage,
    ChatPrompt,
    ErrorKind,
    Generation,
    Prompt,
    RequestError,
    TextPrompt,
    TokenPrompt,
    invalid,
)

_ANY_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `([^`]*)`")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class StreamOptions(_Strict, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: Any = None


class TextPart(_Strict, frozen=True):
    """The one kind of part that is taken; `type` is looked at before the rest."""

    type: str
    text: str


class Message(_Strict, frozen=True):
    """A chat message; the fields after `name` may only be empty."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    annotations: Any = None


class _Common(_Strict, frozen=True, kw_only=True):
    """What both endpoints take. Fields of type Any are not implemented: see `_NEUTRAL`."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    n: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatRequest(_Common, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    top_logprobs: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    chat_template_kwargs: Any = None


class CompletionRequest(_Common, frozen=True, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int]
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


_WITHOUT_EFFECT: Final = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
)  # fmt: skip
"""They label a request or choose between ways to the same answer."""

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "stream_options.include_obfuscation": (False,),
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "chat_template_kwargs": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
"""Values that ask for nothing, besides null; any other is refused."""

_NEUTRAL_IN_MESSAGES: Final = ("refusal", "tool_calls", "function_call", "audio", "annotations")

_chat_decoder: Final = msgspec.json.Decoder(ChatRequest)
_completion_decoder: Final = msgspec.json.Decoder(CompletionRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """Raises RequestError naming the field."""
    request: ChatRequest = _decode(_chat_decoder, body)
    _refuse_unimplemented(request)
    for number, message in enumerate(request.messages):
        for field in _NEUTRAL_IN_MESSAGES:
            if getattr(message, field) not in (None, []):
                raise invalid(f"messages[{number}].{field}", "is not supported")
    return request


def decode_completion(body: bytes) -> CompletionRequest:
    """Raises RequestError naming the field."""
    request: CompletionRequest = _decode(_completion_decoder, body)
    _refuse_unimplemented(request)
    return request


def chat_generation(request: ChatRequest, waited: float | None) -> Generation:
    """Raises RequestError naming the field."""
    if request.max_completion_tokens is not None and request.max_completion_tokens < 1:
        wrong = request.max_completion_tokens
        raise invalid("max_completion_tokens", f"must be 1 or more, not {wrong}")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise invalid("max_tokens", "contradicts max_completion_tokens: give one of them")
    messages = [_message(number, message) for number, message in enumerate(request.messages)]
    return _generation(request, ChatPrompt(messages), next(iter(limits), None), waited)


def completion_generation(request: CompletionRequest, waited: float | None) -> Generation:
    """Raises RequestError naming the field."""
    return _generation(request, _prompt(request.prompt), request.max_tokens, waited)


def wants_usage(request: _Common) -> bool:
    """Whether a stream ends with a chunk that tells the usage."""
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _decode(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(ErrorKind.INVALID, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError(ErrorKind.INVALID, "the body is nested too deeply") from error


def _explain(complaint: str, inside: str = "") -> RequestError:
    path = _ANY_PATH.search(complaint)
    where = ".".join(filter(None, (inside, path.group(1) if path else "")))
    if unknown := _UNKNOWN_FIELD.search(complaint):
        field = f"{where}.{unknown.group(1)}" if where else unknown.group(1)
        return invalid(field[:128], "is not a parameter that is known here")
    message = _ANY_PATH.sub("", complaint)
    if missing := re.search(r"missing required field `([^`]*)`", message):
        where, message = f"{where}.{missing.group(1)}".lstrip("."), "is missing"
    if not where:
        return RequestError(ErrorKind.INVALID, f"the body: {message}")
    return invalid(where[:128], message[:1].lower() + message[1:])


def _refuse_unimplemented(request: _Common) -> None:
    for field, neutral in _NEUTRAL.items():
        value: Any = request
        for name in field.split("."):
            value = getattr(value, name, None)
        if value is None:
            continue
        if not any(type(value) is type(one) and value == one for one in _also_float(neutral)):
            allowed = f": leave it out or set it to {_show(neutral[0])}" if neutral else ""
            raise invalid(field, f"is not supported yet{allowed}")


def _also_float(values: Sequence[Any]) -> list[Any]:
    """JSON has one kind of number: 0 and 0.0 are the same, but false is not 0."""
    return [*values, *(float(value) for value in values if type(value) is int)]


def _show(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _message(number: int, message: Message) -> ChatMessage:
    where = f"messages[{number}].content"
    if message.content is None:
        raise invalid(where, "is missing")
    if isinstance(message.content, str):
        return ChatMessage(message.role, message.content, message.name)
    parts = [_text(f"{where}[{index}]", part) for index, part in enumerate(message.content)]
    text = "\n".join(parts)
    return ChatMessage(message.role, text, message.name)


def _text(where: str, part: dict[str, Any]) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind != "text":
        raise invalid(f"{where}.type", f"is {kind[:32]!r}, and only text is supported")
    try:
        return msgspec.convert(part, TextPart).text
    except msgspec.ValidationError as error:
        raise _explain(str(error), where) from error


def _prompt(prompt: str | list[str | int]) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    token_ids = [token_id for token_id in prompt if isinstance(token_id, int)]
    if len(token_ids) == len(prompt):
        return TokenPrompt(token_ids)
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return TextPrompt(prompt[0])
    raise invalid("prompt", "must be one text or one list of token ids: batches are not supported")


def _generation(
    request: _Common, prompt: Prompt, max_tokens: int | None, waited: float | None
) -> Generation:
    stop = request.stop if request.stop is not None else []
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "is only for requests with stream set to true")
    return Generation(
        prompt=prompt,
        model=request.model,
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop[: MAX_STOP_STRINGS + 1]),
        ignore_eos=bool(request.ignore_eos),
        waited_seconds=waited,
    )
