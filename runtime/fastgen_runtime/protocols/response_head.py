"""What all of OpenAI's responses have in common: their head, usage and server-sent events."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Protocol

import msgspec

from fastgen_runtime.front.answer import Delta, PromptEcho, Usage

DONE: Final = b"data: [DONE]\n\n"
VERSION: Final = version("fastgen")
_FINGERPRINT: Final = f"fastgen-{VERSION}"
_encoder: Final = msgspec.json.Encoder()
encode: Final = _encoder.encode


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """response_id: the same in every chunk. created: Unix seconds."""

    response_id: str
    model: str
    created: int

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": _FINGERPRINT,
        }


class ResponseWriter(Protocol):
    """Writes one response, whole or as events; `base` is the index of a prompt's first choice."""

    def prepare(self, base: int, echo: PromptEcho) -> Iterator[None]:
        """Encodes what is told of a prompt, before the first delta that has it is taken in.

        May be long: others are to have their turn between two steps.
        """
        ...

    def add(self, base: int, delta: Delta) -> None:
        """Takes in a delta of a response that is told whole."""
        ...

    def whole(self, usage: Usage) -> Iterator[bytes]:
        """The body in pieces, once every delta is there."""
        ...

    def events(self, base: int, delta: Delta, so_far: Usage | None = None) -> bytes:
        """The events that tell a delta; so_far: the usage with its tokens, where it is told."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The events behind the last delta's."""
        ...


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


def usage_fields(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def usage_in_chunk(is_wanted: bool, so_far: Usage | None) -> dict[str, Any]:
    """What a chunk says of the usage: a client that wants it is promised the field in each."""
    if not is_wanted:
        return {}
    return {"usage": None if so_far is None else usage_fields(so_far)}


def end_events(head: dict[str, Any], usage: Usage | None) -> bytes:
    """The events behind the last delta's; usage: None where it is not told."""
    if usage is None:
        return DONE
    return event(head | {"choices": [], "usage": usage_fields(usage)}) + DONE


def split_event(body: dict[str, Any], hole: str) -> tuple[bytes, bytes]:
    """An event in two pieces, between which the text goes that stands at `hole` in `body`."""
    before, after = event(body).split(encode(hole), 1)
    return before, after
