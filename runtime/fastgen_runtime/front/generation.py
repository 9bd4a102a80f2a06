"""What a client asks for, whichever protocol it speaks, and why it may not get it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from fastgen_runtime.engine.request import Grammar

MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARACTERS: Final = 256
"""Each token of an answer is compared with every beginning of its stop strings."""
MAX_STOP_TOKEN_IDS: Final = 128
MAX_CHOICES: Final = 128
MAX_LOGPROBS: Final = 20
MAX_LOGIT_BIASES: Final = 1024
MAX_LOGIT_BIAS: Final = 100
MAX_REPETITION_PENALTY: Final = 100
MAX_TOOL_NAME_CHARACTERS: Final = 64
MAX_WAITED_MS: Final = 3_600_000
"""No balancer holds a request for an hour; one false header would spoil the sums for ever."""
TRACEPARENT: Final = "traceparent"
"""W3C Trace Context's header."""


class ErrorKind(Enum):
    """Why a request gets no answer; both protocols have a status for each."""

    INVALID = "invalid"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LARGE = "too_large"
    FULL = "full"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    FAILED = "failed"


class RequestError(Exception):
    """A request is refused or ends early; `field` names what the client should change."""

    def __init__(self, kind: ErrorKind, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.field = field


def invalid(field: str, message: str) -> RequestError:
    """The client's own error; the message begins with the field."""
    return RequestError(ErrorKind.INVALID, f"{field} {message}", field)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Encoded with the special tokens that the tokenizer adds by itself."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made; arguments: JSON, as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """role: system, user, assistant or tool. tool_call_id: the call that a tool answers."""

    role: str
    content: str
    name: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; parameters: a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Rendered with the model's chat template; template_variables: what else the template reads."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Generation:
    """A request before it has tokens; None takes the default. Sampling: see `step.Sampling`.

    model_judged: a balancer sends it here whatever `model` says, by a route or a header of the
    client's. num_choices: independent answers to the one prompt. stop, stop_token_ids: each ends an
    answer; the text holds neither. min_tokens: so many come before an answer may end. echo: the
    text begins with the prompt. num_logprobs, num_prompt_logprobs: how many of the likeliest tokens
    are told for each output and prompt token, beside itself; None: no log probabilities. priority:
    smaller ones go first. waited_seconds: how long a balancer held it before; None when there is no
    balancer. deadline: on `time.monotonic`'s clock. request_id, traceparent: the client's, for log
    and spans. shown_token_ids: special tokens that have a text in the answer, as others have.
    tells_prompt_ids: the prompt's token ids come with each choice's first delta.
    protocol: the one that it came by, `http` or `grpc`.
    """

    prompt: Prompt
    model: str = ""
    model_judged: bool = False
    num_choices: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    echo: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    priority: int = 0
    waited_seconds: float | None = None
    deadline: float | None = None
    request_id: str = ""
    traceparent: str | None = None
    shown_token_ids: Sequence[int] = ()
    tells_prompt_ids: bool = False
    protocol: str = ""


CHAT_ROLES: Final = ("system", "user", "assistant", "tool")
_RANGES: Final = (
    # field, attribute, least, most; None: no bound
    ("n", "num_choices", 1, MAX_CHOICES),
    ("min_tokens", "min_tokens", 0, None),
    ("temperature", "temperature", 0, 2),
    ("top_k", "top_k", 0, 2**31 - 1),
    ("min_p", "min_p", 0, 1),
    ("frequency_penalty", "frequency_penalty", -2, 2),
    ("presence_penalty", "presence_penalty", -2, 2),
    ("logprobs", "num_logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", "num_prompt_logprobs", 0, MAX_LOGPROBS),
    ("priority", "priority", -(2**31), 2**31 - 1),
)


def check(generation: Generation, vocabulary_size: int | None = None) -> None:
    """Raises RequestError naming the first field that is out of range, or contradicts another."""
    for field_name, attribute, least, most in _RANGES:
        value = getattr(generation, attribute)
        if value is not None:
            _check_range(field_name, value, least, most)
    top_p, penalty = generation.top_p, generation.repetition_penalty
    if top_p is not None and not 0 < top_p <= 1:  # false for NaN, too
        raise invalid("top_p", f"must be above 0 and at most 1, not {show_number(top_p)}")
    if penalty is not None and not 0 < penalty <= MAX_REPETITION_PENALTY:
        most = MAX_REPETITION_PENALTY
        raise invalid(
            "repetition_penalty", f"must be above 0 and at most {most}, not {show_number(penalty)}"
        )
    if generation.seed is not None and not -(2**63) <= generation.seed < 2**64:
        raise invalid("seed", "must fit in 64 bits")
    _check_lengths(generation)
    _check_stops(generation.stop)
    _check_token_ids(generation, vocabulary_size)
    if generation.grammar is not None:
        _check_end_of_grammar(generation)
    if isinstance(generation.prompt, ChatPrompt):
        _check_messages(generation.prompt.messages)
        _check_tools(generation.prompt.tools)


def _check_range(name: str, value: float, least: float, most: float | None) -> None:
    if most is None:
        if not value >= least:
            raise invalid(name, f"must be {least} or more, not {show_number(value)}")
    elif not least <= value <= most:
        raise invalid(name, f"must be between {least} and {most}, not {show_number(value)}")


def _check_lengths(generation: Generation) -> None:
    max_tokens, min_tokens = generation.max_tokens, generation.min_tokens
    if max_tokens is None:
        return
    if max_tokens == 0 and not generation.echo:
        raise invalid("max_tokens", "must be 1 or more, not 0, which is for echo only")
    if max_tokens < 0:
        raise invalid("max_tokens", f"must be 1 or more, not {show_number(max_tokens)}")
    if min_tokens > max_tokens:
        least, most = show_number(min_tokens), show_number(max_tokens)
        raise invalid("min_tokens", f"is {least}, more than max_tokens, {most}")


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid("stop", f"may hold at most {MAX_STOP_STRINGS} strings")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"strings must have 1 to {MAX_STOP_CHARACTERS} characters, not {len(stop)}",
            )


def _check_token_ids(generation: Generation, vocabulary_size: int | None) -> None:
    """vocabulary_size: None where ids are not known to be outside it."""
    if len(generation.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"may hold at most {MAX_STOP_TOKEN_IDS} token ids")
    if len(generation.logit_bias) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"may hold at most {MAX_LOGIT_BIASES} token ids")
    for token_id, bias in generation.logit_bias.items():
        _check_range(f"logit_bias[{show_number(token_id)}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    end = 2**31 if vocabulary_size is None else vocabulary_size
    for name, ids in (
        ("stop_token_ids", generation.stop_token_ids),
        ("logit_bias", generation.logit_bias),
    ):
        for token_id in ids:
            if not 0 <= token_id < end:
                raise invalid(
                    name, f"holds token id {show_number(token_id)}, outside 0 to {end - 1}"
                )


def _check_end_of_grammar(generation: Generation) -> None:
    """The output ends where the grammar does: nothing else could be chosen there."""
    if generation.ignore_eos:
        raise invalid("ignore_eos", "contradicts a grammar, at whose end the answer ends")
    if generation.min_tokens:
        raise invalid("min_tokens", "contradicts a grammar, at whose end the answer ends")


def _check_messages(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise invalid("messages", "must hold at least one message")
    for number, message in enumerate(messages):
        if message.role not in CHAT_ROLES:
            raise invalid(
                f"messages[{number}].role",
                f"must be one of {', '.join(CHAT_ROLES)}, not {message.role[:32]!r}",
            )
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"messages[{number}].tool_calls", "is for the role assistant only")
        if (message.tool_call_id is None) == (message.role == "tool"):
            why = "is missing" if message.role == "tool" else "is for the role tool only"
            raise invalid(f"messages[{number}].tool_call_id", why)


def _check_tools(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "holds two of the same name")
    for number, name in enumerate(names):
        if not 1 <= len(name) <= MAX_TOOL_NAME_CHARACTERS:
            raise invalid(
                f"tools[{number}].name", f"must have 1 to {MAX_TOOL_NAME_CHARACTERS} characters"
            )


def show_number(value: float) -> str:
    """JSON's numbers have as many digits as the client likes."""
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "a number of more than 64 bits"
    return f"{value:g}" if math.isfinite(value) else "a number that is not finite"


def waited_seconds(header: str | bytes | None) -> float | None:
    """Seconds from the header `x-fastgen-waited-ms`; None when no balancer sent a sound one."""
    if header is None:
        return None
    try:
        milliseconds = float(header)
    except ValueError:
        return None
    return milliseconds / 1e3 if 0 <= milliseconds <= MAX_WAITED_MS else None  # not NaN, either
