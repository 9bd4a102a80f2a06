"""What a client asks for, whichever protocol it speaks, and why it may not get it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from fastgen_runtime.engine.request import Grammar

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
    balancer. is_unwitnessed: no balancer hears how it ends. deadline: on `time.monotonic`'s clock.
    request_id, traceparent: the client's, for log and spans. shown_token_ids: special tokens that
    have a text in the answer, as others have. tells_prompt_ids: the prompt's token ids come with
    each choice's first delta. protocol: the one that it came by, `http` or `grpc`.
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
    is_unwitnessed: bool = False
    deadline: float | None = None
    request_id: str = ""
    traceparent: str | None = None
    shown_token_ids: Sequence[int] = ()
    tells_prompt_ids: bool = False
    protocol: str = ""


def waited_seconds(header: str | bytes | None) -> float | None:
    """Seconds from the header `x-fastgen-waited-ms`; None when no balancer sent a sound one."""
    if header is None:
        return None
    try:
        milliseconds = float(header)
    except ValueError:
        return None
    return milliseconds / 1e3 if 0 <= milliseconds <= MAX_WAITED_MS else None  # not NaN, either
