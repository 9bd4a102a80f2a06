"""What an HTTP body asks for, once it is read: generations, and what is told of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastgen_runtime.front.generation import Generation, RequestError
from fastgen_runtime.protocols.openai_tools import ToolUse


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request's headers say. waited_seconds: None where no balancer held it.

    model_judged: whether a balancer has judged the model that the body names. is_unwitnessed:
    whether no balancer hears how it ends.
    """

    request_id: str = ""
    traceparent: str | None = None
    waited_seconds: float | None = None
    model_judged: bool = False
    is_unwitnessed: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of `Generation` that follow."""
        return {
            "request_id": self.request_id,
            "traceparent": self.traceparent,
            "waited_seconds": self.waited_seconds,
            "model_judged": self.model_judged,
            "is_unwitnessed": self.is_unwitnessed,
            "protocol": "http",
        }


@dataclass(frozen=True, slots=True)
class Told:
    """What the response tells, beside text.

    num_choices: of each prompt. num_logprobs, num_prompt_logprobs: see `Generation`; the latter
    only where they are told by themselves, and not as an echo's. with_usage: at a stream's end;
    with_usage_so_far: with each chunk.
    """

    num_choices: int = 1
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    with_token_ids: bool = False
    with_usage: bool = False
    with_usage_so_far: bool = False
    is_echo: bool = False
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request. field_names: what the endpoint calls fields of `Generation`."""

    generations: tuple[Generation, ...]
    is_stream: bool
    told: Told
    field_names: Mapping[str, str]

    def named(self, error: RequestError) -> RequestError:
        """The error, with the field called as in the body."""
        field = error.field or ""
        name = self.field_names.get(field, field)
        if name == field:
            return error
        message = error.message
        if message.startswith(field):
            message = name + message[len(field) :]
        return RequestError(error.kind, message, name)
