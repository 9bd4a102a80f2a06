"""Responses of /v1/completions."""

from typing import Any, Final

from fastgen_runtime.front.answer import Delta, PromptEcho, Usage
from fastgen_runtime.protocols.asked import Told
from fastgen_runtime.protocols.openai_logprobs import CompletionLogprobs, joined, prompt_logprobs
from fastgen_runtime.protocols.response_head import (
    DONE,
    ResponseHead,
    encode,
    event,
    split_event,
    usage_fields,
)
from fastgen_runtime.text.token_text import TokenTexts

_KIND: Final = "text_completion"
_HOLE: Final = "\0text\0"


class CompletionWriter:
    """Writes one response, whole or as events."""

    def __init__(self, head: ResponseHead, told: Told, texts: TokenTexts) -> None:
        self._head = head.fields(_KIND)
        self._told = told
        self._texts = texts
        self._choices: dict[int, _Choice] = {}

    def add(self, base: int, delta: Delta) -> None:
        self._choice(base, delta).add(delta)

    def whole(self, usage: Usage) -> bytes:
        choices = [choice.whole() for _, choice in sorted(self._choices.items())]
        return encode(self._head | {"choices": choices, "usage": usage_fields(usage)})

    def events(self, base: int, delta: Delta, so_far: Usage | None = None) -> bytes:
        choice = self._choice(base, delta)
        if choice.is_plain and delta.prompt is None:
            return choice.plain_events(delta)
        fields = choice.told_of(delta)
        if not any(fields.get(name) for name in _TOLD):
            return b""
        return event(self._head | {"choices": [fields]} | self._usage(so_far))

    def end(self, usage: Usage) -> bytes:
        if not self._told.with_usage:
            return DONE
        return event(self._head | {"choices": [], "usage": usage_fields(usage)}) + DONE

    def _choice(self, base: int, delta: Delta) -> "_Choice":
        index = base + delta.index
        choice = self._choices.get(index)
        if choice is None:
            choice = _Choice(index, self._told, self._texts, self._head | self._usage(None))
            self._choices[index] = choice
        return choice

    def _usage(self, so_far: Usage | None) -> dict[str, Any]:
        # A client that wants the usage is promised the field in every chunk.
        if not self._told.with_usage:
            return {}
        return {"usage": usage_fields(so_far) if so_far is not None else None}


_TOLD: Final = ("text", "finish_reason", "logprobs", "token_ids", "prompt_token_ids",
                "prompt_logprobs")  # fmt: skip
"""A chunk in which all of these are empty tells nothing."""


class _Choice:
    """One choice: what its deltas tell, and all of them together."""

    def __init__(self, index: int, told: Told, texts: TokenTexts, head: dict[str, Any]) -> None:
        self._index = index
        self._told = told
        self._texts = texts
        self._logprobs = (
            CompletionLogprobs(told.num_logprobs, texts) if told.num_logprobs is not None else None
        )
        self._whole: dict[str, Any] | None = None
        self.is_plain = (
            told.num_logprobs is None and not told.with_token_ids and not told.with_usage_so_far
        )
        if self.is_plain:
            body = head | {"choices": [self._fields(_HOLE, None)]}
            self._before, self._after = split_event(body, _HOLE)
        self._head = head

    def plain_events(self, delta: Delta) -> bytes:
        """Where only text is told, most of an event is always the same."""
        events = b""
        if delta.text:
            events = self._before + encode(delta.text) + self._after
        if delta.finish is not None:
            events += event(self._head | {"choices": [self._fields("", delta)]})
        return events

    def told_of(self, delta: Delta) -> dict[str, Any]:
        """The choice as one chunk tells it."""
        fields = self._fields(self._text(delta), delta)
        if self._logprobs is not None:
            fields["logprobs"] = self._logprobs_of(self._logprobs, delta)
        if self._told.with_token_ids:
            fields["token_ids"] = list(delta.token_ids)
        return fields | self._of_prompt(delta.prompt)

    def add(self, delta: Delta) -> None:
        fields = self.told_of(delta)
        if self._whole is None:
            self._whole = fields
            return
        whole = self._whole
        whole["text"] += fields["text"]
        whole["finish_reason"] = fields["finish_reason"]
        whole["stop_reason"] = fields["stop_reason"]
        if fields["logprobs"] is not None:
            before = whole["logprobs"]
            whole["logprobs"] = joined(before, fields["logprobs"]) if before else fields["logprobs"]
        if "token_ids" in fields:
            whole["token_ids"] += fields["token_ids"]

    def whole(self) -> dict[str, Any]:
        return self._whole or self._fields("", None)

    def _fields(self, text: str, delta: Delta | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": delta.finish if delta is not None else None,
            "stop_reason": delta.matched_stop if delta is not None else None,
        }

    def _text(self, delta: Delta) -> str:
        return delta.prompt.text + delta.text if delta.prompt is not None else delta.text

    def _logprobs_of(
        self, logprobs: CompletionLogprobs, delta: Delta
    ) -> dict[str, list[Any]] | None:
        if delta.prompt is not None and self._told.is_echo:
            prompt = logprobs.of_prompt(delta.prompt)
            return joined(prompt, logprobs.of_output(delta.logprobs))
        return logprobs.of_output(delta.logprobs) if delta.logprobs else None

    def _of_prompt(self, echo: PromptEcho | None) -> dict[str, Any]:
        if echo is None:
            return {}
        fields: dict[str, Any] = {}
        if self._told.with_token_ids:
            fields["prompt_token_ids"] = list(echo.token_ids)
        if self._told.num_prompt_logprobs is not None:
            num_top = self._told.num_prompt_logprobs
            fields["prompt_logprobs"] = prompt_logprobs(echo, num_top, self._texts)
        return fields
