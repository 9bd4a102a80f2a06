"""OpenAI's responses: whole ones and the chunks of a stream, for both endpoints."""

from dataclasses import dataclass
from typing import Any

import msgspec

from fastgen_runtime.answer import Delta, Usage
from fastgen_runtime.openai_api import usage_body
from fastgen_runtime.request import FinishReason

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Writes one response. created: Unix seconds. with_usage: a stream tells it at its end."""

    is_chat: bool
    response_id: str
    model: str
    created: int
    with_usage: bool = False

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> bytes:
        """The body of a response that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.is_chat else "text_completion"
        return msgspec.json.encode(
            self._head(kind) | {"choices": [choice], "usage": usage_body(usage)}
        )

    def events(self, delta: Delta, is_first: bool) -> bytes:
        """The events that tell a delta; the first names the role, the last the reason to end."""
        events = b""
        if is_first or delta.text:
            events += self._event(self._choice(delta.text, is_first, None))
        if delta.finish is not None:
            events += self._event(self._choice("", False, delta.finish))
            if self.with_usage and delta.usage is not None:
                tail = {"choices": [], "usage": usage_body(delta.usage)}
                events += _event(self._chunk_head() | tail)
            events += DONE
        return events

    def _choice(self, text: str, is_first: bool, finish: FinishReason | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if not self.is_chat:
            return choice | {"text": text}
        delta = {"role": "assistant"} if is_first else {}
        if finish is None:
            delta["content"] = text
        return choice | {"delta": delta}

    def _event(self, choice: dict[str, Any]) -> bytes:
        # A client that wants the usage is promised the field in every chunk.
        usage = {"usage": None} if self.with_usage else {}
        return _event(self._chunk_head() | {"choices": [choice]} | usage)

    def _chunk_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.is_chat else "text_completion")

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
